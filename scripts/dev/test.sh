#!/usr/bin/env bash
# The whole suite, in three parts; all of them run even if one fails, and one summary closes.
#   test.sh [serial] [mpi] [b]     (default: all three)
# serial: every test, ranks being threads; some start MPI jobs of their own.   mpi: the promises on 1, 2 and 3 processes.
# b: what holds for both stacks, on TensorFlow 2.21, Keras 3 and NumPy 2.
# A few tests that fail in company, in serial or b, are run once more, alone; the summary names them: see SECOND_LOOKS.
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$ROOT"
SERIAL_TESTS=(tests)
# One rank under MPI is much like one without: there the promises about ranks and files will do.
ONE_RANK_TESTS=(tests/promises/test_{backends,elastic,hdf5_mpio,preemption,round_trip}.py tests/mpi)
MPI_TESTS=(tests/promises tests/mpi)
# Of the promises, stack B runs those in which NumPy 2, another h5py or another interpreter could tell.
B_TESTS=(tests/unit/test_{draining,imports,loading,manifest,planner,rankfile_format,safetensors,sharding,statedicts,words}.py tests/promises/test_{round_trip,elastic,reading,mismatch,backends,hdf5_suite,hdf5_files}.py tests/format tests/native/test_{block_io,choice,copying,dlpack,nonfinite,plugin_calls,tf_ops,tfinfo,views}.py tests/keras tests/tmci tests/tensorflow_shell tests/exporting tests/lms/test_{importers,class,session,pass,keras_path,equality,tiers}.py tests/train_config/test_{allow_list,cycles}.py tests/train_parts/test_{models,positions}.py tests/train_run/test_{environment,custom_loop}.py tests/train_run/test_killed.py::test_two_ranks_that_are_killed_at_two_of_these_places_end_with_the_same_bits tests/fuzz tests/campaign/test_fuzz.py)
# Behind pytest's own time-out per test, for what hangs outside a test.
SERIAL_S=3600 MPI_S=600 B_S=1800
# One test more at a time than there are cores, for some always wait (for Slurm, for a disk, for a process to end); up to
# four: MPI jobs and thread pools of their own are among them.
WORKERS=$(($(nproc 2>/dev/null || echo 1) + 1))
[ "$WORKERS" -le 4 ] || WORKERS=4
IN_PARALLEL=(-n "$WORKERS" --dist worksteal)
# These tests kill, wait for clocks and start real schedulers, on machines that others use too. As many failures of a part
# are looked at again, each test alone; what fails then has failed. More are no accident, and stand.
SECOND_LOOKS=3
PARTS=("$@")
[ $# -gt 0 ] || PARTS=(serial mpi b)
RESULTS=$ROOT/build/logs/test
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
export HPCCKPT_TEST_TOOLS=1
# The closing lines are read below, and mpirun's pseudo-terminal would colour them.
export PY_COLORS=0

summary=() alone=() failed=0
# part NAME COMMAND...: run it, keep its output, remember how it ended.
part() {
    local name=$1 t0=$SECONDS rc=0 log closing again
    shift
    log=$RESULTS/${name//[^a-z0-9]/-}
    say "== $name"
    CACHE=$log.cache "$@" 2>&1 </dev/null | tee "$log.log" || rc=$?
    closing=$(closing_line "$log.log")
    mapfile -t again < <(failures "$log.cache")
    if [ "$rc" = 1 ] && [ "${#again[@]}" -gt 0 ] && [ "${#again[@]}" -le "$SECOND_LOOKS" ]; then
        say "== $name, once more, alone: ${again[*]}"
        if ALONE=yes CACHE=$log.cache "$@" 2>&1 </dev/null | tee "$log-alone.log"; then rc=alone alone+=("${again[@]}"); fi
        closing+="; alone: $(closing_line "$log-alone.log")"
    fi
    case $rc in 0 | alone) ;; *) failed=1 ;; esac
    if [ "$rc" != 0 ] && [ -z "$closing" ]; then closing="1 failed (the job itself)"; fi
    summary+=("$(printf '%-12s %-24s %4d s   %s' "$name" "$(verdict "$rc")" $((SECONDS - t0)) "$closing")")
}

# failures CACHE: the tests that failed, a line each.
failures() {
    if [ -e "$1/v/cache/lastfailed" ]; then sed -nE 's/^ *"(.*)": true,?$/\1/p' "$1/v/cache/lastfailed"; fi
}

verdict() {
    case $1 in
        0) echo ok ;;
        alone) echo "ok, some only alone" ;;
        5) echo "FAILED: ran no test" ;;
        124 | 137) echo "FAILED: out of time" ;;
        *) echo "FAILED ($1)" ;;
    esac
}

closing_line() { sed -nE 's/^=+ (([0-9]+ [a-z]+,? ?)+in [^=]*[^= ]) *=+$/\1/p' "$1" | tail -n 1; }

# Over all parts, as one line; an error while a test is set up counts as a failure, a test that passed alone as passed.
total() {
    printf '%s\n' "${summary[@]%%;*}" | { grep -oE '[0-9]+ (passed|failed|errors?|skipped)' || true; } |
        awk -v alone="${#alone[@]}" '{n[$2] += $1} END {n["failed"] -= alone; n["passed"] += alone; printf "total: %d passed, %d failed, %d skipped\n", n["passed"], n["failed"] + n["error"] + n["errors"], n["skipped"]}'
}

existing() { local path; for path in "$@"; do if [ -e "${path%%::*}" ]; then echo "$path"; fi; done; }

pytest_under_mpi() { # ranks
    local logs=$RESULTS/ranks-$1 rc=0 tests=("${MPI_TESTS[@]}")
    [ "$1" != 1 ] || tests=("${ONE_RANK_TESTS[@]}")
    mkdir -p "$logs"
    # shellcheck disable=SC2046 # paths without blanks
    timeout --kill-after=20 "$MPI_S" "$HPCCKPT_MPIRUN" -n "$1" scripts/dev/rank.sh "$logs" \
        python -m pytest --with-mpi -p no:cacheprovider $(existing "${tests[@]}") || rc=$?
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
serial() {
    PLACE=$(mktemp -d -p "$(roomy /dev/shm || echo "${TMPDIR:-/tmp}")" hpcckpt-XXXXXX)
    trap 'rm -rf "$PLACE"' EXIT
    pytest_or_again "$SERIAL_S" --basetemp "$PLACE/t" "${SERIAL_TESTS[@]}"
}

# roomy DIRECTORY: print its name if 4 GiB are free there.
roomy() { [ -w "$1" ] && [ "$(df -k --output=avail "$1" | tail -n 1)" -ge $((4 << 20)) ] && echo "$1"; }

# shellcheck disable=SC2046 # paths without blanks
stack_b() { pytest_or_again "$B_S" $(existing "${B_TESTS[@]}"); }

# pytest_or_again SECONDS ARGUMENT...: all tests, several at a time; under ALONE those that failed before, one by one.
pytest_or_again() {
    local limit=$1 how=("${IN_PARALLEL[@]}")
    shift
    [ -z "${ALONE:-}" ] || how=(--last-failed --last-failed-no-failures none)
    timeout --kill-after=20 "$limit" python -m pytest "${how[@]}" -o cache_dir="$CACHE" "$@"
}

for name in "${PARTS[@]}"; do
    case $name in
        serial) part serial on_stack a serial ;;
        mpi) for n in 1 2 3; do part "mpirun -n $n" on_stack a pytest_under_mpi "$n"; done ;;
        b) part "stack b" on_stack b stack_b ;;
        *) die "no part '$name': one of serial, mpi, b" ;;
    esac
done

say ""
printf '== %s\n' "${summary[@]}"
[ "${#alone[@]}" = 0 ] || printf 'passed only alone: %s\n' "${alone[@]}"
total
[ "$failed" = 0 ] || die "tests failed; the whole output is in build/logs/test"
