"""Which version is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Of the package, or a word for a source tree that was never installed."""
    try:
        return version("tapas-softmax")
    except PackageNotFoundError:
        return "0+unknown"
