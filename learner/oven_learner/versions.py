"""Which versions a run was made with; RunStarted carries them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("oven-controller", "torch", "transformers", "accelerate", "trl")


def installed() -> dict[str, str]:
    """Package → version, of those that are there; none is imported for it."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
