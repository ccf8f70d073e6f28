"""``python -m hpcckpt.train``: the same as ``hpcckpt train``."""

import sys

from hpcckpt.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
