#!/usr/bin/env bash
# Builds the documentation site into build/site; a warning (a link that leads nowhere, a docstring that cannot be read) is
# an error.
set -euo pipefail
# shellcheck source=scripts/dev/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$ROOT"
scripts/dev/setup.sh docs
use_stack a
mpi_settings
export TF_CPP_MIN_LOG_LEVEL=3 PYTHONPATH=$ROOT PYTHONDONTWRITEBYTECODE=1
python=$ROOT/.venv-docs/bin/python
"$python" scripts/dev/site_pages.py build/site-pages
"$python" -m sphinx -q -W --keep-going -c docs -j auto build/site-pages build/site
say "the site: build/site/index.html"
