#!/usr/bin/env bash
# One rank of a test under mpirun:  mpirun -n 3 rank.sh DIRECTORY COMMAND...
# Only rank 0 speaks; what the others say goes to DIRECTORY/rank-N.log, to be shown if the job fails.
set -euo pipefail
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}}
logs=$1
shift
if [ "$rank" != 0 ]; then exec >"$logs/rank-$rank.log" 2>&1; fi
exec "$@"
