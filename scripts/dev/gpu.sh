#!/usr/bin/env bash
# Everything that needs a GPU: the tests marked gpu and a benchmark, from the sources alone, without a network.
#   gpu.sh [--dry-run] [OPTIONS OF bench/gpu.py]
# Needed: a Python from 3.11 with PyTorch for GPUs, NumPy, mpi4py, nanobind; CMake and a C++ compiler. With TensorFlow for GPUs,
# pytest and what tests need (pyproject.toml) more is run; what is not run is listed at the end.
# HPCCKPT_PYTHON names the Python, else .venv/bin/python or python3; the native part is built into build/gpu, nothing is installed.
# --dry-run: the same on the CPU in place of the GPU, to try the script.
# The exit status: 0 all passed, 1 something failed, 2 something that is needed is not there, 77 there is no GPU.
set -euo pipefail
THEIRS=${PYTHONPATH:-} # a site's module may have set it; lib.sh forgets it
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset PYTHONNOUSERSITE
export PYTHONPATH=$THEIRS
cd "$ROOT"
NO_GPU=77
say() { printf 'gpu.sh: %s\n' "$*" >&2; }

DEVICE=cuda
if [ "${1:-}" = --dry-run ]; then
    DEVICE=cpu
    shift
fi
PYTHON=${HPCCKPT_PYTHON:-}
if [ -z "$PYTHON" ]; then
    if [ -x .venv/bin/python ]; then PYTHON=$ROOT/.venv/bin/python; else PYTHON=$(command -v python3 || true); fi
fi
has() { "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# --------------------------------------------------------------------------------------------------- what is there
missing=()
[ -n "$PYTHON" ] && "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || missing+=("a Python from 3.11")
if [ ${#missing[@]} = 0 ]; then
    for name in torch numpy mpi4py; do has "$name" || missing+=("$name"); done
fi
if [ ${#missing[@]} != 0 ]; then
    say "needed, and not there: ${missing[*]} (HPCCKPT_PYTHON names another Python)"
    exit 2
fi

not_run=()
nvidia=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
read -r seen build < <("$PYTHON" -c '
import torch
print(torch.cuda.device_count(), torch.__version__, "for CUDA", torch.version.cuda)')
if [ "$DEVICE" = cuda ] && [ "${seen:-0}" = 0 ]; then
    say "no GPU: nvidia-smi lists ${nvidia:-0}, PyTorch ($build) sees none. Nothing was run."
    exit $NO_GPU
fi

# --------------------------------------------------------------------------------------------------- the native part
# A copy of the package, so that the library of another Python in the checkout stays as it is.
TREE=$ROOT/build/gpu
rm -rf "$TREE/hpcckpt"
mkdir -p "$TREE"
cp -r hpcckpt "$TREE/"
find "$TREE/hpcckpt" -name '*.so' -path '*/native/*' -delete
if has nanobind && command -v cmake >/dev/null; then
    executable=$("$PYTHON" -c 'import sys; print(sys.executable)')
    if ! { cmake -S hpcckpt/native -B "$TREE/native" -DCMAKE_BUILD_TYPE=Release "-DPython_EXECUTABLE=$executable" &&
        cmake --build "$TREE/native" --target _native -j "$(nproc)"; } >"$TREE/cmake.log" 2>&1; then
        tail -n 20 "$TREE/cmake.log" >&2
        say "the native part does not build, see $TREE/cmake.log"
        exit 1
    fi
    cp "$TREE"/native/_native*.so "$TREE/hpcckpt/native/"
else
    has crc32c || { say "needed, and not there: nanobind and CMake, or the package crc32c"; exit 2; }
    not_run+=("the native part: there is no nanobind or no CMake, so the one in Python was used")
fi
export PYTHONPATH=$TREE:$ROOT${THEIRS:+:$THEIRS} PYTHONSAFEPATH=1 # the copy, not the checkout
export HPCCKPT_GPU=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
VENV=$(dirname "$(dirname "$PYTHON")") # whose mpirun goes first, if it has one
mpi_settings

# --------------------------------------------------------------------------------------------------- run
failed=() ran=()
run() { # name, command...
    local name=$1 t0=$SECONDS
    shift
    say "$name: $*"
    if "$@"; then ran+=("$name: ok ($((SECONDS - t0)) s)"); else failed+=("$name: FAILED ($((SECONDS - t0)) s)"); fi
}

run "checks of PyTorch, one rank" "$PYTHON" -m tests.support.gpu.run --device "$DEVICE"
if [ -n "$HPCCKPT_MPIRUN" ]; then
    run "checks of PyTorch, two ranks" "$HPCCKPT_MPIRUN" -n 2 "$PYTHON" -m tests.support.gpu.run --device "$DEVICE"
else
    not_run+=("the checks on two ranks: there is no mpirun")
fi
lacking=()
for name in pytest pytest_timeout hypothesis; do has "$name" || lacking+=("$name"); done
if [ ${#lacking[@]} != 0 ]; then
    not_run+=("pytest -m gpu: there is no ${lacking[*]} (its checks of PyTorch were run above)")
elif [ "$DEVICE" = cpu ]; then
    not_run+=("pytest -m gpu: a dry run")
else
    files=$(grep -rlE 'mark\.gpu\b' tests --include='test_*.py')
    has tensorflow || files=$(grep -v /keras/ <<<"$files")
    # shellcheck disable=SC2086 # one word for each file
    run "tests marked gpu" "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu $files
fi
if ! has tensorflow; then
    not_run+=("TensorFlow on a GPU (snapshots of variables, Large Model Support): it is not installed")
elif [ "$("$PYTHON" -c 'import tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))' 2>/dev/null || echo 0)" = 0 ]; then
    not_run+=("TensorFlow on a GPU (snapshots of variables, Large Model Support): it sees none")
fi
run "benchmark" "$PYTHON" bench/gpu.py --device "$DEVICE" "$@"

# --------------------------------------------------------------------------------------------------- the outcome
device='the CPU: a dry run'
[ "$DEVICE" != cuda ] || device=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name())')
say "on $device"
for line in ${ran[@]+"${ran[@]}"} ${failed[@]+"${failed[@]}"}; do say "  $line"; done
for line in ${not_run[@]+"${not_run[@]}"}; do say "  not run: $line"; done
[ ${#failed[@]} = 0 ]
