# Functions for the scripts in this directory: the engine, the image, and --dry-run. Sourced, not run.
# shellcheck shell=bash
set -euo pipefail

unset CDPATH # with it, `cd` prints
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TITLE=hpcckpt # the label that identifies images of hpcckpt
DRY_RUN=0

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }
misused() { say "${0##*/}: $*"; usage >&2; exit 2; }
# The comment at the head of a script is its help.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

version() { sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$ROOT/hpcckpt/_version.py"; }
default_image() { echo "$TITLE:$(version)"; }

# Print the engine: that of CONTAINER_ENGINE, else the first of docker, podman and buildah that is installed.
engine() {
    local name
    for name in ${CONTAINER_ENGINE:-docker podman buildah}; do
        if command -v "$name" >/dev/null 2>&1 || [ "$DRY_RUN" = 1 ]; then echo "$name"; return; fi
    done
    die "there is none of: ${CONTAINER_ENGINE:-docker, podman, buildah}; install one, or name yours in CONTAINER_ENGINE"
}

# Print a command, and run it unless this is a dry run.
run() {
    say "+$(printf ' %q' "$@")"
    [ "$DRY_RUN" = 1 ] || "$@"
}

# value_of OPTION [VALUE]: print the value, which must not be empty.
value_of() {
    if [ -z "${2:-}" ]; then misused "$1 needs a value"; fi
    printf '%s' "$2"
}

# Check an image name: host and port, path, tag, digest. It has no blanks, and does not begin like an option.
check_image() { [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._:/@-]*$ ]] || die "'$1' is no name of an image"; }
