"""Hash the source files that determine decisions. Replicas may publish for the same run only if their hashes agree."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

FOLDERS = ("mesh", "protocol")
"""Folders of the package whose code turns events into decisions."""
FILES = ("security/signing.py",)
"""Files that decide which events count."""


@cache
def mesh_code_hash() -> str:
    """Return the SHA-256, in hex, of the files that determine decisions. Other modules may differ between replicas."""
    return hash_package(Path(__file__).parent.parent)


def hash_package(package: Path) -> str:
    """Return the hash of the files that determine decisions in the folder `package`."""
    digest = hashlib.sha256()
    for path in deciding_files(package):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def deciding_files(package: Path) -> list[Path]:
    """Return the files that `hash_package` covers, in order. It covers whole folders so that no module is missed."""
    paths = [path for folder in FOLDERS for path in (package / folder).rglob("*.py")]
    paths += [package / name for name in FILES]
    return sorted(paths, key=lambda path: path.relative_to(package).as_posix())
