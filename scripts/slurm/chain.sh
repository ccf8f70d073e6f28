#!/usr/bin/env bash
# Submits a chain of jobs, which run one after the other until the training is done: for sites that do not requeue.
#
#   scripts/slurm/chain.sh 5 --ntasks=4 --time=02:00:00 scripts/slurm/train.sbatch CONFIG
#
# All jobs of a chain have the same name, and Slurm runs one job of a name at a time (--dependency=singleton). A job that
# completes the training, fails, or is stopped by a file HALT, cancels the others (hpcckpt supervise does this, by the name in
# HPCCKPT_CHAIN). HPCCKPT_DRY_RUN=1 shows the commands.
set -euo pipefail
N=${1:?how many jobs? scripts/slurm/chain.sh 5 --time=02:00:00 scripts/slurm/train.sbatch CONFIG}
case $N in '' | *[!0-9]* | 0*) echo "chain.sh: '$N' is no number of jobs" >&2 && exit 2 ;; esac
[ $# -gt 1 ] || { echo "chain.sh: which script? scripts/slurm/chain.sh $N scripts/slurm/train.sbatch CONFIG" >&2 && exit 2; }
# sbatch exports the environment to the new jobs; if this runs within a job, these variables belong to that job
unset HPCCKPT_ATTEMPT HPCCKPT_JOB_END HPCCKPT_JOB_START HPCCKPT_REQUEST HPCCKPT_RESTARTS HPCCKPT_RESTART_COUNT HPCCKPT_SCRIPT
export SBATCH_EXPORT=ALL # the jobs need HPCCKPT_CHAIN
export HPCCKPT_CHAIN=${HPCCKPT_CHAIN:-hpcckpt-chain-$(date +%Y%m%d-%H%M%S)-$$}
SUBMIT=(sbatch --parsable "--job-name=$HPCCKPT_CHAIN" --dependency=singleton "${@:2}")
if [[ ! ${HPCCKPT_DRY_RUN:-0} =~ ^(0|no|false|off)$ ]]; then SUBMIT=(echo "HPCCKPT_CHAIN=$HPCCKPT_CHAIN" "${SUBMIT[@]}"); fi
for ((i = 1; i <= N; i++)); do "${SUBMIT[@]}"; done
