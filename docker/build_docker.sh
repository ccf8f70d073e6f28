#!/usr/bin/env bash
# Builds the image hpcckpt:VERSION from this checkout, wherever it is called from.
#   build_docker.sh [--gpu] [--tag NAME:TAG] [--base IMAGE] [--no-cache] [--dry-run]
# --gpu       for NVIDIA GPUs: the image hpcckpt:VERSION-gpu, with TensorFlow's CUDA from PyPI; the driver is the host's
# --tag       its name, in place of hpcckpt:VERSION
# --base      the base image, in place of debian:bookworm-slim: a Debian 12, perhaps from a mirror or pinned by digest
# --no-cache  build every layer again
# --dry-run   show the commands, do nothing
# CONTAINER_ENGINE=docker|podman|buildah chooses the engine; PIP_CONFIG_FILE, if set, is used by pip in the build, and is not
# stored in the image; http_proxy, https_proxy and no_proxy are used only in the build.
set -euo pipefail
# shellcheck source=docker/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

image='' device=cpu
options=()
while [ $# -gt 0 ]; do
    case $1 in
        --gpu) device=gpu ;;
        --tag) image=$(value_of "$@") || exit; shift ;;
        --base) base=$(value_of "$@") || exit; check_image "$base"; options+=(--build-arg "BASE=$base"); shift ;;
        --no-cache) options+=(--no-cache) ;;
        --dry-run) DRY_RUN=1 ;;
        -h | --help) usage; exit ;;
        *) misused "what is '$1'?" ;;
    esac
    shift
done
if [ -z "$image" ]; then image=$(default_image); [ "$device" = cpu ] || image+=-$device; fi
check_image "$image"
options+=(--build-arg "DEVICE=$device")
ENGINE=$(engine)

if [ -n "${PIP_CONFIG_FILE:-}" ]; then
    [ -r "$PIP_CONFIG_FILE" ] || die "PIP_CONFIG_FILE=$PIP_CONFIG_FILE cannot be read"
    options+=(--secret "id=pip,src=$PIP_CONFIG_FILE")
fi
for name in http_proxy https_proxy no_proxy; do
    if [ -n "${!name:-}" ]; then options+=(--build-arg "$name"); fi # without a value: the engine takes it from this environment
done
# Docker with BuildKit finds the ignore file beside the Dockerfile; the other engines need an option.
case $ENGINE in
    docker) export DOCKER_BUILDKIT=1 ;;
    *) options+=(--ignorefile "$ROOT/docker/Dockerfile.dockerignore" --format docker) ;;
esac
run "$ENGINE" build --file "$ROOT/docker/Dockerfile" --tag "$image" --build-arg "VERSION=$(version)" \
    ${options[@]+"${options[@]}"} "$ROOT"

[ "$DRY_RUN" = 0 ] || exit 0
gpus=''
if [ "$device" = gpu ]; then gpus=' --gpus all'; fi
say "built $image; train with it:
  mkdir -p runs
  ${ENGINE/buildah/podman} run --rm -it --init$gpus --shm-size=512m --user \"\$(id -u):\$(id -g)\" -v \"\$PWD/runs:/runs\" $image \\
      mpirun -n 2 hpcckpt train -c /opt/hpcckpt/examples/configs/mnist.hjson --run mnist"
