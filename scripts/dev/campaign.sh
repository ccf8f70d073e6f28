#!/usr/bin/env bash
# Runs fault campaigns; see tests/campaign/README.md.
#   campaign.sh                                 every campaign in full; the report is build/campaign/report.md
#   campaign.sh corruption --count 500 --seed 7 a part of one
# HPCCKPT_STACK=b runs them on stack B.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/in-venv.sh" python "$(dirname "${BASH_SOURCE[0]}")/../../tests/campaign/_cli.py" "$@"
