#!/usr/bin/env bash
# Pushes the image to a registry, which has to be named: none is built in.
#   push_docker.sh REGISTRY [--image NAME:TAG] [--dry-run]
# REGISTRY    a host, perhaps with a port and a path: registry.example.org:5000/team
# --image     what to push, in place of hpcckpt:VERSION; it gets the same name there
# --dry-run   show the commands, do nothing
# Log in first, by 'docker login REGISTRY'. CONTAINER_ENGINE=docker|podman|buildah chooses the engine.
set -euo pipefail
# shellcheck source=docker/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

image=$(default_image) registry=
while [ $# -gt 0 ]; do
    case $1 in
        --image) image=$(value_of "$@") || exit; shift ;;
        --dry-run) DRY_RUN=1 ;;
        -h | --help) usage; exit ;;
        -*) misused "what is '$1'?" ;;
        *) [ -z "$registry" ] || misused "one registry, please: '$registry' or '$1'?"; registry=$1 ;;
    esac
    shift
done
[ -n "$registry" ] || misused "to which registry?"
[[ $registry != *://* ]] || misused "a registry has no scheme: ${registry#*://}"
registry=${registry%/}
check_image "$registry"
check_image "$image"
ENGINE=$(engine)

run "$ENGINE" tag "$image" "$registry/$image"
run "$ENGINE" push "$registry/$image"
