#!/usr/bin/env bash
# Runs a job, and restarts it each time it exits with code 75 (saved, but not finished).
#
#   examples/requeue.sh mpirun -n 2 python examples/custom_loop.py --directory runs/loop
#
# SIGTERM, SIGUSR1 and SIGUSR2 to this script are forwarded to the job as SIGUSR1: on SIGTERM, mpirun kills its ranks.
# After a signal the allocation is about to end. The script then does not restart the job, and exits with the job's code;
# code 75 is for the scheduler, which can requeue the job. MAX_RESTARTS (default 20) limits the number of restarts.
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
