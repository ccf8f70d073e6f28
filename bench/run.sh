#!/usr/bin/env bash
# Runs all benchmarks and writes tables and plots to build/bench:  make bench   or   make bench ARGS="--quick"
#   --quick         3 rounds of 128 MiB, about 3 minutes     --mib 512     size of the state
#   --repeat 5      rounds                                   --disk DIR    a directory on a disk (default: build/bench)
#   --memory DIR    one in memory (default: /dev/shm)        --only NAME   one of them, as in: --only peers; lms runs only so
#   --write         put the tables into docs/benchmarks.md
set -euo pipefail
unset CDPATH # with it, `cd` prints
cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=$PWD/build/bench MIB=512 REPEAT=5 DISK=$PWD/build/bench MEMORY=/dev/shm ONLY='' WRITE=() FAILED=()
RANKS=${RANKS:-2}
while [ $# -gt 0 ]; do
    case $1 in
        --quick) MIB=128 REPEAT=3 ;;
        --write) WRITE=(--write docs/benchmarks.md) ;;
        --mib) MIB=$2 && shift ;;
        --repeat) REPEAT=$2 && shift ;;
        --disk) DISK=$2 && shift ;;
        --memory) MEMORY=$2 && shift ;;
        --only) ONLY=$2 && shift ;;
        *) echo "run.sh: no option $1; see bench/README.md" >&2 && exit 2 ;;
    esac
    shift
done
if [ -n "$ONLY" ] && [ ! -e "bench/$ONLY.py" ]; then echo "run.sh: no benchmark $ONLY; see bench/README.md" >&2 && exit 2; fi
trap 'exit 130' INT
mkdir -p "$OUT" "$DISK"
scripts/dev/setup.sh a
scripts/dev/setup.sh peers

# measure STACK RANKS RESULT PROGRAM ARG...: one benchmark; its JSON is build/bench/RESULT.json.
measure() {
    local stack=$1 ranks=$2 result=$3 program=$4 launch=()
    shift 4
    if [ -n "$ONLY" ] && [ "$ONLY" != "$program" ]; then return 0; fi
    rm -f "$OUT/$result.json"
    echo "$(date +%T) $result; what is being measured: $OUT/$result.log" >&2
    # shellcheck disable=SC2016 # the environment knows its mpirun
    if [ "$ranks" -gt 1 ]; then launch=(sh -c 'exec "$HPCCKPT_MPIRUN" -n '"$ranks"' "$@"' mpirun); fi
    if ! HPCCKPT_STACK=$stack scripts/dev/in-venv.sh "${launch[@]}" python "bench/$program.py" \
        --json "$OUT/$result.json" "$@" 2>"$OUT/$result.log"; then
        FAILED+=("$result")
        tail -n 15 "$OUT/$result.log" >&2
    fi
}

sizes=(--mib "$MIB" --repeat "$REPEAT")
for place in memory disk; do
    directory=$DISK apart=(--apart)
    if [ "$place" = memory ]; then directory=$MEMORY apart=(); fi
    measure a "$RANKS" "save-$place" save "${sizes[@]}" --directory "$directory"
    measure a "$RANKS" "restore-$place" restore "${sizes[@]}" --directory "$directory"
    measure a "$RANKS" "incremental-$place" incremental "${sizes[@]}" --directory "$directory"
    measure peers "$RANKS" "peers-$place" peers "${sizes[@]}" "${apart[@]}" --directory "$directory"
done
measure a "$RANKS" hdf5-disk hdf5 "${sizes[@]}" --directory "$DISK"
measure peers "$RANKS" peers-async-memory peers "${sizes[@]}" --asynchronous --directory "$MEMORY"
measure a 1 blocking blocking "${sizes[@]}" --directory "$MEMORY"
measure a 1 stall stall "${sizes[@]}" --directory "$DISK"
measure a 1 overhead overhead --repeat 3 --directory "$DISK" # each round is minutes
measure a "$RANKS" tiers tiers "${sizes[@]}" --directory "$DISK" --scratch "$MEMORY"
measure a 1 planning planning --directory "$DISK"
measure a 1 scale scale --directory "$MEMORY" --plot "$OUT/scale.svg"
measure peers 1 syncs syncs --directory "$DISK"
# Trainings by the minute: only when asked for (--only lms), and its tables are printed.
if [ "$ONLY" = lms ]; then
    mkdir -p "$OUT/lms" # its figures have a form of their own, and are no table of the report
    HPCCKPT_STACK=a scripts/dev/in-venv.sh python bench/lms.py --directory "$DISK" --repeat "$REPEAT" --json "$OUT/lms/found.json"
    exit
fi
HPCCKPT_STACK=a scripts/dev/in-venv.sh python bench/report.py "$OUT" "${WRITE[@]}"
if [ "${#FAILED[@]}" -gt 0 ]; then
    echo "failed: ${FAILED[*]}; the logs are in $OUT" >&2
    exit 1
fi
