"""A digest of each document of the protocol that programs in other languages read."""

from __future__ import annotations

from collections.abc import Iterator

from tests.golden.store import CHECKOUT, Json, Limits, digest

FILE = "protocol.json"
DOCUMENTS = CHECKOUT / "docs" / "protocol"


def documents(limits: Limits) -> Iterator[tuple[str, Json]]:
    """The file, and digests by the names of the documents."""
    yield FILE, {path.name: digest(path.read_bytes()) for path in sorted(DOCUMENTS.glob("*.json"))}
