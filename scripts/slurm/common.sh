# What the batch scripts beside it share; sourced by them. There is nothing to edit: it is all options and environment.
# shellcheck shell=bash disable=SC2034  # LAUNCH and SUPERVISE are for those who source this
#
#   HPCCKPT_SETUP         a file to source first: the site's modules, an environment      ~/.hpcckpt.sh, if it is there
#   HPCCKPT_RUN           the run directory                                               runs/ and the name of CONFIG
#   HPCCKPT_MPI           srun --mpi=...: pmix for Open MPI, pmi2 for MPICH and Intel,    the site's default
#                         cray_shasta for Cray (srun --mpi=list)
#   HPCCKPT_SRUN          more options of srun: "--cpu-bind=cores --gpus-per-task=1"      none
#   HPCCKPT_BIND          no: leave the GPUs to srun; else a rank that sees several       yes
#                         takes its own before MPI starts
#   HPCCKPT_MAX_RESTARTS  how often a job is put into the queue again                     20
#   HPCCKPT_SCRATCH       node-local storage                                              the first that is fit for it
#   HPCCKPT_DRY_RUN       1: say what would be done, and do nothing; on a laptop too
#   HPCCKPT_HOME          where scripts/slurm is                                          where sbatch was called
set -euo pipefail

# A warning that comes before hpcckpt can hear it must not end the job; hpcckpt itself watches the clock besides.
trap '' USR1 USR2

if [ -r "${HPCCKPT_SETUP:=$HOME/.hpcckpt.sh}" ]; then
    # shellcheck source=/dev/null
    . "$HPCCKPT_SETUP"
fi
command -v hpcckpt >/dev/null || {
    echo "hpcckpt is not on the PATH of $(hostname): let $HPCCKPT_SETUP load its environment (HPCCKPT_SETUP names another file)" >&2
    exit 127
}

# A rank that has checkpointed and exits with 75 is no reason to kill the others, which exit a moment later; a rank that
# remains alone is killed (--wait). Since Slurm 22.05 srun needs the cores per task again that sbatch was given.
LAUNCH=(srun --kill-on-bad-exit=0 --wait=120)
if [ -n "${HPCCKPT_MPI:-}" ]; then LAUNCH+=("--mpi=$HPCCKPT_MPI"); fi
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
    LAUNCH+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}
fi
read -ra more <<<"${HPCCKPT_SRUN:-}"
LAUNCH+=(${more[@]+"${more[@]}"})
if [ "${HPCCKPT_BIND:-yes}" != no ]; then LAUNCH+=(python -m hpcckpt.jobs.binding); fi

SUPERVISE=(hpcckpt supervise)
if [ "${HPCCKPT_DRY_RUN:-0}" != 0 ]; then
    SUPERVISE+=(--dry-run)
    export SLURM_JOB_ID=${SLURM_JOB_ID:-JOBID} # outside of a job, too, it is Slurm that would be told
fi

# The same bits from run to run, where the ops of a model allow it (slower; set a seed in CONFIG as well):
# export TF_DETERMINISTIC_OPS=1 TF_CUDNN_DETERMINISTIC=1

# run_of CONFIG: the run directory that goes with a configuration.
run_of() {
    local name=${1##*/}
    printf '%s' "${HPCCKPT_RUN:-runs/${name%.*}}"
}
