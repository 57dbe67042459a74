"""A digest of each document of the protocol that programs in other languages read."""

from __future__ import annotations

from tests.golden.store import CHECKOUT, Json, Limits, digest

FILE = "protocol.json"
DOCUMENTS = CHECKOUT / "docs" / "protocol"


def documents(limits: Limits) -> dict[str, Json]:
    """File → digests by the names of the documents."""
    return {FILE: {path.name: digest(path.read_bytes()) for path in sorted(DOCUMENTS.glob("*.json"))}}
