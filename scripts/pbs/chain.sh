#!/usr/bin/env bash
# Submits a chain of jobs, which run one after the other until the training is done: for nodes that may not submit jobs.
#
#   HPCCKPT_CONFIG=CONFIG scripts/pbs/chain.sh 5 -A PROJECT -l walltime=6:00:00 -q prod scripts/pbs/polaris.pbs
#
# A job starts when the one before it has ended with a code other than 0 (depend=afternotok): checkpointed, killed or failed.
# When a job completes the training, PBS deletes the jobs that depend on its failure. A job that fails, or is stopped by a
# file HALT, deletes the others (hpcckpt supervise does this, by the name in HPCCKPT_CHAIN). All variables whose names begin
# with HPCCKPT_ are passed to the jobs; another -v would replace them. HPCCKPT_DRY_RUN=1 shows the commands.
set -euo pipefail
N=${1:?how many jobs? scripts/pbs/chain.sh 5 -A PROJECT scripts/pbs/polaris.pbs}
case $N in *[!0-9]* | 0*) echo "chain.sh: '$N' is no number of jobs" >&2 && exit 2 ;; esac
[ $# -gt 1 ] || { echo "chain.sh: which script? scripts/pbs/chain.sh $N -A PROJECT scripts/pbs/polaris.pbs" >&2 && exit 2; }
# if this runs within a job, these variables belong to that job
unset HPCCKPT_ATTEMPT HPCCKPT_JOB_END HPCCKPT_JOB_START HPCCKPT_REQUEST HPCCKPT_RESTARTS HPCCKPT_RESTART_COUNT HPCCKPT_SCRIPT
export HPCCKPT_CHAIN=${HPCCKPT_CHAIN:-hpcckpt-$(date +%Y%m%d-%H%M%S)-$$}
submit=(qsub -N "$HPCCKPT_CHAIN" -v "$(compgen -e HPCCKPT_ | grep -v DRY_RUN | paste -sd,)")
after=()
for ((i = 1; i <= N; i++)); do
    words=("${submit[@]}" ${after[@]+"${after[@]}"} "${@:2}")
    if [[ ! ${HPCCKPT_DRY_RUN:-0} =~ ^(0|no|false|off)$ ]]; then
        echo "${words[*]}"
        job=JOB$i
    else
        job=$("${words[@]}")
        echo "$job"
    fi
    after=(-W "depend=afternotok:$job")
done
