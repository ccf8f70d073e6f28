# Shared by the scripts beside it: where things are, steps with their logs and stamps, and MPI's settings. Sourced, not run.
# shellcheck shell=bash
set -euo pipefail

unset CDPATH # with it, `cd` prints
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off
# Neither the caller's Python packages nor its activated environment belong in ours.
export PYTHONNOUSERSITE=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

# use_stack a|b|peers|fuzz|lint|docs: which environment the steps work on, and where their logs lie.
use_stack() {
    STACK=$1
    case $STACK in
        a) VENV=$ROOT/.venv CONSTRAINTS=$ROOT/constraints/stack-a.txt ;;
        b) VENV=$ROOT/.venv-b CONSTRAINTS=$ROOT/constraints/stack-b.txt ;;
        peers) VENV=$ROOT/.venv-peers CONSTRAINTS=$ROOT/constraints/peers.txt ;;
        fuzz) VENV=$ROOT/.venv-fuzz CONSTRAINTS=$ROOT/constraints/fuzz.txt ;;
        lint) VENV=$ROOT/.venv-lint CONSTRAINTS=$ROOT/constraints/lint.txt ;;
        docs) VENV=$ROOT/.venv-docs CONSTRAINTS=$ROOT/constraints/docs.txt ;;
        *) die "no stack '$STACK': one of a, b, peers, fuzz, lint, docs" ;;
    esac
    LOGS=$ROOT/build/logs/setup-$STACK
    STAMPS=$VENV/.stamps
    export CONSTRAINTS
}

say() { printf '%s\n' "$*" >&2; }
die() { say "hpcckpt: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }
hash_of() { sha256sum | cut -c1-16; }
# Of the files whose names come in, zero-ended: names and contents, in one order on every machine.
hash_files() { LC_ALL=C sort -z | xargs -0r sha256sum | hash_of; }

# step TITLE NAME KEY HELP COMMAND...: run COMMAND with its output in a log, unless it already succeeded for this KEY.
# HELP is what a person should do next when it fails.
STEP_N=0
step() {
    local title=$1 name=$2 key=$3 help=$4 t0=$SECONDS log rc=0
    shift 4
    STEP_N=$((STEP_N + 1))
    if [ "$(cat "$STAMPS/$name" 2>/dev/null)" = "$key" ]; then
        return 0
    fi
    mkdir -p "$LOGS"
    log=$LOGS/$name.log
    printf '[%s %d/%d] %s ... ' "$STACK" "$STEP_N" "$STEP_OF" "$title" >&2
    # A subshell, so that `set -e` holds inside COMMAND: as part of an `if` or `||` it would not.
    set +e
    (set -e; "$@") >"$log" 2>&1 </dev/null
    rc=$?
    set -e
    if [ "$rc" != 0 ]; then
        say "failed after $((SECONDS - t0)) s"
        # The reason is often far above the end.
        { grep -E 'error:|Error at|ERROR:' "$log" | head -n 5 || true; echo ...; tail -n 12 "$log"; } | sed 's/^/    | /' >&2
        say "  what to do: $help"
        say "  whole log:  $log"
        exit 1
    fi
    mkdir -p "$STAMPS"
    printf '%s' "$key" >"$STAMPS/$name"
    say "$((SECONDS - t0)) s"
}

# As root inside a container Open MPI wants to be told twice, has few cores to place ranks on, and may not read
# another process's memory; binding to cores would squeeze TensorFlow's threads onto one.
mpi_settings() {
    export PATH=$VENV/bin:$PATH
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    # Ranks that wait must give up their core, where cores are few.
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1
    # Open MPI 5 (PRRTE) has the same three under other names.
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
    if [ -z "${HPCCKPT_MPIRUN:-}" ]; then
        for HPCCKPT_MPIRUN in mpirun mpiexec srun ''; do have "${HPCCKPT_MPIRUN:-:}" && break; done
    fi
    export HPCCKPT_MPIRUN
}
