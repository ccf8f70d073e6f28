# Shared by the scripts in this directory, which source it. It needs no editing: options and variables set everything.
# shellcheck shell=bash
#
#   HPCCKPT_SETUP         a file to source in place of the modules below                  ~/.hpcckpt.sh, if it exists
#   HPCCKPT_RUN           the run directory                                               runs/ and the name of CONFIG
#   HPCCKPT_RANKS_PER_NODE                                                                4
#   HPCCKPT_LEAD          how long before its end a job is signalled to save and stop        300 (seconds)
#   HPCCKPT_MAX_RESTARTS  how often a job submits itself again                            20
#   HPCCKPT_DRY_RUN       1: print what would be done, and do nothing; on a laptop too
set -eo pipefail
unset CDPATH # with it, `cd` prints
THETA=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export HPCCKPT_HOME=${HPCCKPT_HOME:-$(cd "$THETA/../.." && pwd)}
export HPCCKPT_TENSORFLOW_JSON=${HPCCKPT_TENSORFLOW_JSON:-$THETA/tensorflow.json}

setup=${HPCCKPT_SETUP:-$HOME/.hpcckpt.sh} # modules of the site, an environment
case $setup in */*) ;; *) setup=./$setup ;; esac # a name alone would be looked up on PATH
if [ -r "$setup" ]; then
    arguments=("$@") && set -- # a sourced file sees them, and may change them
    trap 'echo "$setup ended the job with $?: a command in it failed" >&2' EXIT
    # shellcheck source=/dev/null
    . "$setup"
    trap - EXIT
    set -- "${arguments[@]}"
elif [ -n "${HPCCKPT_SETUP:-}" ]; then
    echo "HPCCKPT_SETUP: $setup cannot be read in $PWD on $(hostname): give the path of a file to source" >&2
    exit 2
elif command -v module >/dev/null; then
    module swap PrgEnv-intel PrgEnv-gnu
    module load cce
    module load datascience/tensorflow-2.0
    module load cmake/3.14.5
fi
