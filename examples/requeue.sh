#!/usr/bin/env bash
# Runs a job, and again as long as it says that it wants to go on (exit code 75).
#
#   examples/requeue.sh mpirun -n 2 python examples/custom_loop.py --directory runs/loop
#
# A signal to this script (SIGTERM, SIGUSR1, SIGUSR2) goes on to the job as SIGUSR1, for on SIGTERM mpirun kills its ranks
# itself; then the allocation ends, so the job is not started again here, and the code 75 is for the scheduler.
# MAX_RESTARTS (default 20) ends the chain.
set -u
is_asked=0
job=
trap 'is_asked=1; [ -z "$job" ] || kill -USR1 "$job" 2>/dev/null' TERM USR1 USR2

for ((n = 0; n <= ${MAX_RESTARTS:-20}; n++)); do
    "$@" &
    job=$!
    [ "$is_asked" = 0 ] || kill -USR1 "$job" 2>/dev/null # the signal came before the job was known
    while kill -0 "$job" 2>/dev/null; do wait "$job"; done # a signal ends `wait`, not the job
    wait "$job"
    code=$?
    echo "requeue.sh: run $n ended with $code" >&2
    if [ "$code" != 75 ] || [ "$is_asked" = 1 ]; then break; fi
done
exit "$code"
