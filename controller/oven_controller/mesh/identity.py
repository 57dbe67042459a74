"""Which mesh this is: two replicas may publish for one run only if they would compute the same."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_hash() -> str:
    """SHA-256, in hex, of all that a decision's bytes depend on: the mesh's sources, and what stands on the wire.

    The service is left out: it moves bytes and decides nothing, so replicas may differ in it.
    """
    here = Path(__file__).parent
    sources = [path for path in here.glob("*.py") if path.name != "service.py"]
    sources += [here.parent / f"{name}.py" for name in ("events", "messages", "names", "rules", "wire")]
    digest = hashlib.sha256()
    for path in sorted(sources, key=lambda path: path.relative_to(here.parent).as_posix()):
        digest.update(path.relative_to(here.parent).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
