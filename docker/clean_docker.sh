#!/usr/bin/env bash
# Removes images of hpcckpt that lost their name to a later build. Named images and images of other projects are kept.
#   clean_docker.sh [--yes] [--dry-run]
# --yes       do not ask
# --dry-run   list what would go
# CONTAINER_ENGINE=docker|podman|buildah chooses the engine.
set -euo pipefail
# shellcheck source=docker/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

is_sure=0 is_listing=0
while [ $# -gt 0 ]; do
    case $1 in
        --yes) is_sure=1 ;;
        --dry-run) is_listing=1 ;;
        -h | --help) usage; exit ;;
        *) misused "what is '$1'?" ;;
    esac
    shift
done
ENGINE=$(engine)
OURS="label=org.opencontainers.image.title=$TITLE"

found=$("$ENGINE" images --quiet --filter dangling=true --filter "$OURS" | LC_ALL=C sort -u)
if [ -z "$found" ]; then say "nothing to remove"; exit; fi
mapfile -t dangling <<<"$found"
if [ "$is_listing" = 1 ]; then printf '%s\n' "${dangling[@]}"; exit; fi
if [ "$is_sure" = 0 ]; then
    read -r -p "remove ${#dangling[@]} image(s) without a name? [y/N] " answer || answer=
    [[ $answer == [yY]* ]] || { say "removed nothing"; exit 1; }
fi
run "$ENGINE" rmi "${dangling[@]}"
