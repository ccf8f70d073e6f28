#!/usr/bin/env bash
# Runs every linter, to the end, and fails if one of them complained. `lint.sh --fix` first mends what can be mended.
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
use_stack lint
"$ROOT/scripts/dev/setup.sh" lint
export PATH=$VENV/bin:$PATH
cd "$ROOT"

files() { find "$@" -type f -print 2>/dev/null | LC_ALL=C sort; }
mapfile -t shell < <(files .ci scripts examples bench tests | grep -E '^\.ci/|\.(sh|sbatch|pbs|qsub)$')
mapfile -t cxx < <(files hpcckpt tests examples bench | grep -E '\.(c|cc|cpp|h|hpp)$')

failed=()
lint() {
    local name=$1 t0=$SECONDS
    shift
    if "$@"; then
        say "lint: $name ok ($((SECONDS - t0)) s)"
    else
        say "lint: $name FAILED ($((SECONDS - t0)) s)"
        failed+=("$name")
    fi
}

if [ "${1:-}" = --fix ]; then
    ruff check --fix . || true
    ruff format .
    clang-format -i "${cxx[@]}"
fi
lint "ruff check" ruff check .
lint "ruff format" ruff format --check .
lint "mypy" mypy
lint "import-linter" lint-imports
lint "shellcheck" shellcheck --external-sources "${shell[@]}"
lint "clang-format" clang-format --dry-run -Werror "${cxx[@]}"
lint "codespell" codespell
[ "${#failed[@]}" = 0 ] || die "lint failed: ${failed[*]}"
