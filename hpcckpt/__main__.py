"""``python -m hpcckpt``: the command line."""

import sys

from hpcckpt.cli import main

if __name__ == "__main__":
    sys.exit(main())
