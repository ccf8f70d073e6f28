"""All that a backend has to do to be tested like the built-in ones."""

from hpcckpt.testing.backends import BackendSuite


class TestRaw(BackendSuite):
    backend = "raw"
    counts = (1, 3)  # numbers of ranks to test on; 1, 2, 3 and 5 without this line
