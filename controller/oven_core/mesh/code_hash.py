"""Hash of the source files that determine decisions. Replicas may publish for one run only if their hashes agree."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

FOLDERS = ("mesh", "protocol")
"""Folders of the package with everything that turns events into decisions."""
FILES = ("security/signing.py",)
"""Files that decide which events count."""


@cache
def mesh_code_hash() -> str:
    """Return the SHA-256, in hex, of the installed sources that decide. Other modules may differ."""
    return hash_of(Path(__file__).parent.parent)


def hash_of(package: Path) -> str:
    """Return the hash of the deciding sources in the folder `package`."""
    digest = hashlib.sha256()
    for path in deciding(package):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def deciding(package: Path) -> list[Path]:
    """Return the files that `hash_of` covers, in its order, by folder, so that no new module is forgotten."""
    paths = [path for folder in FOLDERS for path in (package / folder).rglob("*.py")]
    paths += [package / name for name in FILES]
    return sorted(paths, key=lambda path: path.relative_to(package).as_posix())
