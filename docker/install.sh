#!/usr/bin/env bash
# The build steps of an image, run as root on Debian 12. Dockerfile and apptainer.def both use them, so the images are the same.
#   install.sh runtime     install what training needs from Debian: Python, Open MPI, parallel HDF5
#   install.sh compilers   install what only the build needs
#   install.sh project     install hpcckpt in .venv with scripts/dev/setup.sh; with DEVICE=gpu, TensorFlow and CUDA for GPUs
#   install.sh slim        remove the compilers, for an image without layers
#   install.sh prove       test every part on two ranks: the last step, in an image without what only the build needs
set -euo pipefail
unset CDPATH # with it, `cd` prints
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# h5dump and h5ls show the contents of checkpoints. No versions are pinned: a Debian release has one of each package.
RUNTIME=(python3.11 openmpi-bin libhdf5-openmpi-103-1 libhdf5-openmpi-hl-100 hdf5-tools)
COMPILERS=(python3.11-venv python3.11-dev g++ make libopenmpi-dev libhdf5-openmpi-dev)

install() {
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
    forget_packages
}

forget_packages() { rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb; }

slim() {
    DEBIAN_FRONTEND=noninteractive apt-get purge -y --auto-remove "${COMPILERS[@]}"
    forget_packages
}

project() {
    cd "$ROOT"
    # Files that were compiled outside of the image belong to another Python.
    rm -rf build .venv
    find hpcckpt examples \( -name '*.so' -o -name '__pycache__' \) -prune -exec rm -rf {} +
    case ${DEVICE:-cpu} in
        cpu) export HPCCKPT_GPU=0 ;;
        gpu) export HPCCKPT_GPU=1 ;;
        *) echo "install.sh: DEVICE=$DEVICE is neither cpu nor gpu" >&2; exit 2 ;;
    esac
    scripts/dev/setup.sh a
    # Otherwise a user who may not write here would compile every module at each start.
    .venv/bin/python -m compileall -q hpcckpt
    rm -rf build
}

prove() {
    PATH=$ROOT/.venv/bin:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1 CUDA_VISIBLE_DEVICES='' \
        mpirun -n 2 python "$ROOT/docker/prove.py"
}

case ${1:-} in
    runtime) install "${RUNTIME[@]}" ;;
    compilers) install "${COMPILERS[@]}" ;;
    project | slim | prove) "$1" ;;
    *) echo "usage: install.sh runtime | compilers | project | slim | prove" >&2; exit 2 ;;
esac
