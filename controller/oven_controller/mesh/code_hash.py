"""Which mesh this is: two replicas may publish for one run only if they would compute the same."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DECIDING = ("mesh/machine.py", "security/signing.py")
"""Where deciding begins: what makes decisions of events, and what says which events count."""


@cache
def code_hash() -> str:
    """SHA-256, in hex, of all our sources that a decision's bytes depend on.

    The service is left out: it moves bytes and decides nothing, so replicas may differ in it.
    """
    return hash_of(Path(__file__).parent.parent)


def hash_of(package: Path) -> str:
    """The same of the sources in the folder `package`: those of DECIDING, and whatever these import of the package,
    directly or not."""
    digest = hashlib.sha256()
    for path in sorted(deciding(package), key=lambda path: path.relative_to(package).as_posix()):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def deciding(package: Path) -> set[Path]:
    """The files that `hash_of` is over. They are read and not imported, so it does not matter what else this process
    has imported."""
    found: set[Path] = set()
    ahead = [package / name for name in DECIDING]
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.add(path)
            ahead += _imported(path, package)
    return found


def _imported(source: Path, package: Path) -> Iterator[Path]:
    """The files of `package` that one of its files names in an import, wherever in it that stands."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            # `from a.b import c` names the module a.b, or its submodule c.
            named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            continue
        for module in named:
            if module.startswith(f"{package.name}."):
                path = package.parent.joinpath(*module.split(".")).with_suffix(".py")
                if path.is_file():
                    yield path
