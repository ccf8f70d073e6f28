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
mapfile -t shell < <(files .ci scripts examples bench docker tests | grep -E '^\.ci/|\.(sh|sbatch|pbs|qsub)$')
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

# The part of the native core that knows nothing of Python, for another processor. Zig is a clang that brings the headers
# of all systems along; its clang 15 hides what newer ones show in arm_acle.h.
cross_compile() {
    local file rc=0
    export ZIG_GLOBAL_CACHE_DIR=$ROOT/build/zig ZIG_LOCAL_CACHE_DIR=$ROOT/build/zig
    mkdir -p build
    while read -r file; do
        python -m ziglang c++ -target aarch64-linux-gnu -std=c++17 -O1 -Wall -Wextra -Wshadow -Werror -c "$file" \
            -o build/cross-compiled.o || rc=1
    done < <(grep -LE 'nanobind|bindings\.h|byte_view\.h|tensor_buffer\.h|piece_watcher\.h|signal_check\.h' hpcckpt/native/src/*.cpp)
    rm -f build/cross-compiled.o
    return "$rc"
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
lint "clang for AArch64" cross_compile
lint "codespell" codespell
lint "words" python scripts/dev/check_words.py
[ "${#failed[@]}" = 0 ] || die "lint failed: ${failed[*]} ('make fix' mends the formatting)"
