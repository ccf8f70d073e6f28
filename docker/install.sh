#!/usr/bin/env bash
# The steps inside an image, as root, on Debian 12. Dockerfile and apptainer.def take them from here, so that both make the same.
#   install.sh runtime     what a training needs from Debian: Python, Open MPI, parallel HDF5
#   install.sh compilers   what building needs besides
#   install.sh project     hpcckpt in .venv, by the script that developers use; with DEVICE=gpu TensorFlow and CUDA for GPUs
#   install.sh slim        take away the compilers again: for an image without layers
#   install.sh prove       run every part, on two ranks: last of all, when nothing is there that only building needs
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# h5dump and h5ls are for looking into checkpoints. Versions are Debian's: a release of it keeps one of each package.
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
    # What was compiled or made outside belongs to another Python.
    rm -rf build .venv
    find hpcckpt examples \( -name '*.so' -o -name '__pycache__' \) -prune -exec rm -rf {} +
    case ${DEVICE:-cpu} in
        cpu) export HPCCKPT_GPU=0 ;;
        gpu) export HPCCKPT_GPU=1 ;;
        *) echo "install.sh: DEVICE=$DEVICE is neither cpu nor gpu" >&2; exit 2 ;;
    esac
    scripts/dev/setup.sh a
    # A user who may not write here would compile every module again at each start.
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
