# The documented path of hpcckpt.train.config_errors, for type checkers; hpcckpt.core.moved serves it.
from hpcckpt.train.config_errors import ConfigError as ConfigError
