"""Hash of the sources that decide: two replicas may publish for one run only if theirs are equal."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

FOLDERS = ("mesh", "protocol")
"""Folders of the package that hold all that makes decisions of events."""
FILES = ("security/signing.py",)
"""Files besides: they say which events count."""


@cache
def mesh_code_hash() -> str:
    """SHA-256, in hex, of the sources that decide, as they are installed here. Modules that only move bytes are not in
    it, so replicas may differ in them."""
    return hash_of(Path(__file__).parent.parent)


def hash_of(package: Path) -> str:
    """The same of the sources in the folder `package`."""
    digest = hashlib.sha256()
    for path in deciding(package):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def deciding(package: Path) -> list[Path]:
    """The files that `hash_of` is over, in its order. They are found by place and not by import, so that a new module
    cannot be forgotten."""
    found = [path for folder in FOLDERS for path in (package / folder).rglob("*.py")]
    found += [package / name for name in FILES]
    return sorted(found, key=lambda path: path.relative_to(package).as_posix())
