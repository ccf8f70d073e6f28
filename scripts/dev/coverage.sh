#!/usr/bin/env bash
# Shows the features of the original systems, row by row; see docs/features.md.
#   coverage.sh                 all rows; the report is build/coverage/report.md
#   coverage.sh T1 K3 --keep    some, whose directories are kept
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/in-venv.sh" python -m tests.features "$@"
