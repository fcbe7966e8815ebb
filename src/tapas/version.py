"""The installed version of tapas-softmax."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tapas-softmax")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
