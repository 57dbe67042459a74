"""Binary format of the token prior: a few hundred tokens and their scores, in at most a kilobyte.

Big-endian: magic `OVTP`, version (1 byte), Rice parameter (1), vocabulary size (4), tokens (4), lowest and highest
score (4 + 4, IEEE 754), the first 8 bytes of the vocabulary's SHA-256; then a stream of bits: the gaps between the ids
in ascending order, Rice-coded (Rice & Plaunt 1971), and in the same order the scores, 4 bits each, linear from lowest
to highest. The rest of the last byte is zero. A token that is not listed has at most the lowest score.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from oven_core.errors import ConfigError

MAGIC: Final = b"OVTP"
VERSION: Final = 1
LIMIT: Final = 1024
"""Bytes."""
LEVELS: Final = 15
_HEADER: Final = struct.Struct(">4sBBIIff8s")


def vocabulary_sha(tokens: Sequence[str]) -> str:
    """Return the SHA-256, in hex, of the tokens' texts by id, as canonical JSON."""
    return hashlib.sha256(json.dumps(list(tokens), separators=(",", ":")).encode()).hexdigest()


def encode(scores: Mapping[int, float], size: int, sha: str) -> bytes:
    """Return the encoded prior. `scores`: token id → finite score; `size` and `sha` are the vocabulary's. Tokens with
    the lowest scores are omitted if the limit requires it. Raises ConfigError if an id is not in the vocabulary, or if
    there are no scores."""
    bad = [id_ for id_, score in scores.items() if not 0 <= id_ < size or not math.isfinite(score)]
    if bad or not scores:
        raise ConfigError(
            f"token {bad[0]} has no finite score or is not among the {size} of the vocabulary; take it out"
            if bad
            else "no token has a score; a prior needs at least one"
        )
    ranked = sorted(scores, key=lambda id_: (-scores[id_], id_))
    count = len(ranked)
    while len(blob := _packed({id_: scores[id_] for id_ in ranked[:count]}, size, sha)) > LIMIT:
        count = min(count - 1, int(count * LIMIT / len(blob)))
    return blob


def tokens_in(blob: bytes) -> int:
    """Return the number of tokens in an encoded prior."""
    return int(_HEADER.unpack_from(blob)[4])


def decode(blob: bytes, size: int, sha: str) -> dict[int, float]:
    """Return token id → score. Raises ConfigError if `blob` is not a token prior, or if its vocabulary does not match
    `size` and `sha`. A prior for other tokens would be noise that looks like knowledge."""
    if len(blob) < _HEADER.size or len(blob) > LIMIT or blob[:4] != MAGIC:
        raise ConfigError(f"{len(blob)} bytes that begin with {blob[:4]!r} are not a token prior")
    _, version, rice, own_size, count, low, high, own_sha = _HEADER.unpack_from(blob)
    if version != VERSION:
        raise ConfigError(f"the token prior has version {version}; this reads {VERSION}")
    if own_size != size or own_sha != bytes.fromhex(sha)[:8]:
        raise ConfigError(
            f"the token prior is for a vocabulary of {own_size} tokens with SHA-256 {own_sha.hex()}…, not for this one "
            f"of {size} with {sha[:16]}…; ask for a new one"
        )
    stream = _Reader(blob[_HEADER.size :])
    ids, last = [], -1
    for _ in range(count):
        last += 1 + (stream.unary() << rice | stream.bits(rice))
        if last >= size:
            raise ConfigError(f"the token prior names token {last} of {size}; it is damaged")
        ids.append(last)
    return {id_: low + (high - low) * stream.bits(4) / LEVELS for id_ in ids}


def _packed(scores: Mapping[int, float], size: int, sha: str) -> bytes:
    ids = sorted(scores)
    gaps = [id_ - last - 1 for last, id_ in zip([-1, *ids], ids, strict=False)]
    rice = min(range(25), key=lambda k: sum((gap >> k) + 1 + k for gap in gaps))
    low, high = min(scores.values()), max(scores.values())
    bits = ["1" * (gap >> rice) + "0" + (f"{gap & ((1 << rice) - 1):0{rice}b}" if rice else "") for gap in gaps]
    for id_ in ids:
        level = round(LEVELS * (scores[id_] - low) / (high - low)) if high > low else LEVELS
        bits.append(f"{level:04b}")
    stream = "".join(bits)
    stream += "0" * (-len(stream) % 8)
    head = _HEADER.pack(MAGIC, VERSION, rice, size, len(ids), low, high, bytes.fromhex(sha)[:8])
    return head + int(stream, 2).to_bytes(len(stream) // 8, "big")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._bits = "".join(f"{byte:08b}" for byte in data)
        self._position = 0

    def unary(self) -> int:
        end = self._bits.find("0", self._position)
        if end < 0:
            raise ConfigError("the token prior ends within a token; it is damaged")
        count, self._position = end - self._position, end + 1
        return count

    def bits(self, count: int) -> int:
        if self._position + count > len(self._bits):
            raise ConfigError("the token prior ends within a token; it is damaged")
        digits = self._bits[self._position : self._position + count]
        self._position += count
        return int(digits, 2) if digits else 0
