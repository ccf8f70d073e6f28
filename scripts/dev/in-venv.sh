#!/usr/bin/env bash
# Runs a command with stack A on the PATH and MPI ready to start ranks here:  in-venv.sh mpirun -n 2 python train.py
# HPCCKPT_STACK=b takes stack B instead.
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
use_stack "${HPCCKPT_STACK:-a}"
[ -x "$VENV/bin/python" ] || die "no ${VENV##*/} yet: run scripts/dev/setup.sh $STACK first"
mpi_settings
exec "$@"
