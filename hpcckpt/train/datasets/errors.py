"""What can be wrong with a data set. Each message names the file and the remedy."""

from __future__ import annotations

from hpcckpt.errors import ConfigError


class DatasetNotFoundError(ConfigError, FileNotFoundError):
    """The data is not there, raw or converted."""

    kind = "dataset-not-found"
    exit_code = 4


class DatasetDamagedError(ConfigError, ValueError):
    """Files of a data set are not what its index, or their format, says."""

    kind = "dataset-damaged"
    exit_code = 3


class PackageMissingError(ConfigError, ImportError):
    """A data set comes with a package that is not installed."""

    kind = "package-missing"
    exit_code = 1
