#!/usr/bin/env bash
# Runs parts of the suite. All of them run even if one fails; a summary follows.
#   test.sh quick              what `make test` runs: every promise at its cheapest level, on stack A, in under 5 minutes
#   test.sh serial mpi b       what `make test-all` runs:
# serial: every test, with threads as ranks; some start MPI jobs.   mpi: what is tested with ranks, on 1, 2 and 3 processes.
# b: what holds for both stacks, on TensorFlow 2.21, Keras 3 and NumPy 2.
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$ROOT"
# Under mpirun: what is tested with ranks in the packages of the engine, the conformance tests and the faults.
# One rank under MPI is much like one without: there the tests with the mark one_rank will do.
ENGINE=(tests/unit/{backends,checkpointer,preemption,restoring,rundir,saving,state,tiers})
MPI_TESTS=("${ENGINE[@]}" tests/conformance tests/faults)
# Of the promises, stack B runs those in which NumPy 2, another h5py or another interpreter could tell.
B_TESTS=(
    tests/unit/test_imports.py tests/unit/collective/test_{background,planner,sharding}.py tests/unit/core/test_words.py
    tests/unit/format tests/unit/backends/test_{backends,hdf5_files,rankfile_format,safetensors}.py
    tests/unit/checkpointer/test_round_trip.py tests/unit/restoring/test_{elastic,loading,mismatch,reading}.py
    tests/unit/state/test_statedicts.py tests/unit/tools/convert tests/conformance/test_hdf5_suite.py
    tests/unit/native/test_{block_io,choice,copying,dlpack,nonfinite,plugin_calls,tf_ops,tfinfo,views}.py
    tests/format/{test_golden,test_hdf5_golden}.py tests/format/fuzz
    tests/frameworks/keras tests/frameworks/tmci tests/frameworks/tensorflow
    tests/frameworks/lms/test_{importers,class,session,pass,keras_path,equality,tiers}.py
    tests/frameworks/train/config/test_{allow_list,cycles}.py tests/frameworks/train/parts/test_{models,positions}.py
    tests/frameworks/train/run/test_{environment,custom_loop}.py
    tests/frameworks/train/run/test_killed.py::test_two_ranks_that_are_killed_at_two_of_these_places_end_with_the_same_bits
    tests/campaign/test_fuzz.py
)
# Limits in seconds, in addition to pytest's own time-out per test, for what hangs outside a test.
QUICK_S=1800 SERIAL_S=3600 MPI_S=600 B_S=1800
# One test more at a time than there are cores, for some always wait (for Slurm, for a disk, for a process to end); up to
# four: MPI jobs and thread pools of their own are among them.
WORKERS=$(($(nproc 2>/dev/null || echo 1) + 1))
[ "$WORKERS" -le 4 ] || WORKERS=4
IN_PARALLEL=(-n "$WORKERS" --dist worksteal)
PARTS=("$@")
[ $# -gt 0 ] || PARTS=(quick)
RESULTS=$ROOT/build/logs/test
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
# The tests themselves read and write UTF-8; what they start has the caller's locale (see tests/support/caller.py).
export PYTHONUTF8=1
# Blanks are too much for LD_PRELOAD, a long name for the sockets of MPI.
export TMPDIR=${TMPDIR:-/tmp}
if [[ $TMPDIR == *[[:space:]]* || ${#TMPDIR} -gt 60 || ! -w $TMPDIR ]]; then TMPDIR=/tmp; fi
# The closing lines are read below, and mpirun's pseudo-terminal would colour them.
export PY_COLORS=0

summary=() failed=0
# part NAME COMMAND...: run it, keep its output, remember how it ended.
part() {
    local name=$1 t0=$SECONDS rc=0 log closing
    shift
    log=$RESULTS/${name//[^a-z0-9]/-}
    say "== $name"
    "$@" 2>&1 </dev/null | tee "$log.log" || rc=$?
    closing=$(closing_line "$log.log")
    if [ "$rc" != 0 ]; then
        failed=1
        if [ -z "$closing" ]; then closing="1 failed (the job itself)"; fi
    fi
    summary+=("$(printf '%-12s %-24s %4d s   %s' "$name" "$(verdict "$rc")" $((SECONDS - t0)) "$closing")")
}

verdict() {
    case $1 in
        0) echo ok ;;
        5) echo "FAILED: ran no test" ;;
        124 | 137) echo "FAILED: out of time" ;;
        *) echo "FAILED ($1)" ;;
    esac
}

closing_line() { sed -nE 's/^=+ (([0-9]+ ([a-z]+ )?[a-z]+,? ?)+in [^=]*[^= ]) *=+$/\1/p' "$1" | tail -n 1; }

# Over all parts, as one line; an error while a test is set up counts as a failure.
total() {
    printf '%s\n' "${summary[@]}" | { grep -oE '[0-9]+ (passed|failed|errors?|skipped)' || true; } |
        awk '{n[$2] += $1} END {printf "total: %d passed, %d failed, %d skipped\n", n["passed"], n["failed"] + n["error"] + n["errors"], n["skipped"]}'
}

existing() { local path; for path in "$@"; do if [ -e "${path%%::*}" ]; then echo "$path"; fi; done; }

pytest_under_mpi() { # ranks
    local logs=$RESULTS/ranks-$1 rc=0 selected=()
    [ "$1" != 1 ] || selected=(-m one_rank)
    mkdir -p "$logs"
    timeout --kill-after=20 "$MPI_S" "$HPCCKPT_MPIRUN" -n "$1" scripts/dev/rank.sh "$logs" \
        python -m pytest --with-mpi -p no:cacheprovider "${selected[@]}" "${MPI_TESTS[@]}" || rc=$?
    if [ "$rc" != 0 ]; then tail -n 40 "$logs"/rank-*.log 2>/dev/null || true; fi
    return "$rc"
}

on_stack() { # stack, command...
    local stack=$1
    shift
    # In a subshell: the two stacks must not see each other's PATH.
    (
        use_stack "$stack"
        scripts/dev/setup.sh "$stack" || exit # spelled out: where the caller looks at the outcome, `set -e` is off
        mpi_settings
        "$@"
    )
}

# In memory where there is room: thousands of tests wait for a disk otherwise. Those of the other parts are on the disk.
in_memory() { # pytest_in_parallel's arguments
    PLACE=$(mktemp -d -p "$(roomy /dev/shm || echo "$TMPDIR")" hpcckpt-XXXXXX)
    trap 'rm -rf "$PLACE"' EXIT
    pytest_in_parallel "$@" --basetemp "$PLACE/t"
}

# roomy DIRECTORY: print its name if 4 GiB are free there.
roomy() { [ -w "$1" ] && [ "$(df -k --output=avail "$1" | tail -n 1)" -ge $((4 << 20)) ] && echo "$1"; }

# pytest_in_parallel SECONDS ARGUMENT...
pytest_in_parallel() {
    local limit=$1
    shift
    timeout --kill-after=20 "$limit" python -m pytest "${IN_PARALLEL[@]}" "$@"
}

# shellcheck disable=SC2046 # paths without blanks
stack_b() { pytest_in_parallel "$B_S" $(existing "${B_TESTS[@]}"); }

for name in "${PARTS[@]}"; do
    case $name in
        quick) HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-quick} part quick on_stack a in_memory "$QUICK_S" -m "not slow" tests ;;
        serial) HPCCKPT_TEST_TOOLS=1 part serial on_stack a in_memory "$SERIAL_S" tests ;;
        mpi) for n in 1 2 3; do part "mpirun -n $n" on_stack a pytest_under_mpi "$n"; done ;;
        b) part "stack b" on_stack b stack_b ;;
        *) die "no part '$name': one of quick, serial, mpi, b" ;;
    esac
done

say ""
printf '== %s\n' "${summary[@]}"
total
[ "$failed" = 0 ] || die "tests failed; the whole output is in build/logs/test"
