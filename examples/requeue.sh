#!/usr/bin/env bash
# Runs a job, and restarts it each time it exits with code 75 (saved, but not finished).
#
#   examples/requeue.sh mpirun -n 2 python examples/custom_loop.py --directory runs/loop
#
# SIGTERM, SIGUSR1 and SIGUSR2 to this script are forwarded to the job as SIGUSR1: on SIGTERM, mpirun kills its ranks.
# After a signal the allocation is about to end. The script then does not restart the job, and exits with the job's code;
# code 75 is for the scheduler, which can requeue the job. MAX_RESTARTS (default 20) limits the number of restarts.
set -u
set +o posix # in which `wait` forgets exit codes
[ $# -gt 0 ] || { echo "usage: requeue.sh COMMAND..." >&2; exit 2; }
code=75 is_asked=0
trap 'is_asked=1; kill -USR1 "${!-}" 2>/dev/null' TERM USR1 USR2
# The job is in the background, where Ctrl-C does not reach it.
trap '{ kill -TERM "${!-}" && wait "$!"; } 2>/dev/null; exit 130' INT

for ((n = 0; n <= ${MAX_RESTARTS:-20} && code == 75 && !is_asked; n++)); do
    "$@" &
    while kill -0 "$!" 2>/dev/null; do
        if [ "$is_asked" = 1 ]; then # again and again: a job that is just starting may miss it
            kill -USR1 "$!" 2>/dev/null
            sleep 1
        else
            wait "$!" # ended by the job, or by a signal to this script
        fi
    done
    wait "$!"
    code=$?
    if [ "$is_asked" = 1 ] && [ "$code" = "$((128 + $(kill -l USR1)))" ]; then code=75; fi # it did not handle it yet
    echo "requeue.sh: run $n ended with $code" >&2
done
exit "$code"
