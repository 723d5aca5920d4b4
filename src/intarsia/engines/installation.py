"""What is known of installed packages without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def find_version(*packages: str) -> str:
    """Version of the first of some packages that is installed, or "" when none is.

    Example:
        >>> find_version("no-such-package", "torch").startswith("2.")
        True
    """
    return next(filter(None, map(_version, packages)), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
