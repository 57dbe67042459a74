"""Encode and decode the token prior: a few hundred tokens and their scores, in at most a kilobyte.

The header is big-endian, with sizes in bytes: magic `OVTP` (4), version (1), Rice parameter (1), vocabulary size (4),
number of tokens (4), lowest and highest score (4 each, IEEE 754), and the beginning of the vocabulary's SHA-256 (8).
A stream of bits follows: the gaps between the token ids in ascending order, Rice-coded (Rice & Plaunt 1971), and then
the scores in the same order. Each score has 4 bits, linear from lowest to highest. Zeros fill the last byte. A token
that is not listed has at most the lowest score.
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
MAX_BYTES: Final = 1024
MAX_LEVEL: Final = 15
"""The highest of the 16 levels to which scores are rounded, so that a score takes 4 bits."""
_HEADER: Final = struct.Struct(">4sBBIIff8s")


def vocabulary_sha(tokens: Sequence[str]) -> str:
    """Return the SHA-256, in hex, of the tokens' texts in the order of their ids, as compact JSON."""
    return hashlib.sha256(json.dumps(list(tokens), separators=(",", ":")).encode()).hexdigest()


def encode(scores: Mapping[int, float], size: int, sha: str) -> bytes:
    """Encode `scores` (token id → finite score) for a vocabulary with this size and SHA-256.

    Tokens with the lowest scores are omitted until the result fits into MAX_BYTES. Raises ConfigError if an id is not
    in the vocabulary, if a score is not finite, or if there are no scores."""
    invalid_ids = [id_ for id_, score in scores.items() if not 0 <= id_ < size or not math.isfinite(score)]
    if invalid_ids:
        raise ConfigError(
            f"token {invalid_ids[0]} has no finite score or is not among the {size} of the vocabulary; remove it"
        )
    if not scores:
        raise ConfigError("no token has a score; a prior needs at least one")
    ranked = sorted(scores, key=lambda id_: (-scores[id_], id_))
    count = len(ranked)
    while len(blob := _pack({id_: scores[id_] for id_ in ranked[:count]}, size, sha)) > MAX_BYTES:
        count = min(count - 1, int(count * MAX_BYTES / len(blob)))
    return blob


def token_count(blob: bytes) -> int:
    """Return the number of tokens in an encoded prior."""
    return int(_HEADER.unpack_from(blob)[4])


def decode(blob: bytes, size: int, sha: str) -> dict[int, float]:
    """Decode a prior to token id → score.

    Raises ConfigError if `blob` is not a token prior, or if the vocabulary's size or SHA-256 differs."""
    if len(blob) < _HEADER.size or len(blob) > MAX_BYTES or blob[:4] != MAGIC:
        raise ConfigError(f"{len(blob)} bytes that begin with {blob[:4]!r} are not a token prior")
    _, version, rice, prior_size, count, low, high, prior_sha = _HEADER.unpack_from(blob)
    if version != VERSION:
        raise ConfigError(f"the token prior has version {version}, but only version {VERSION} is supported")
    if prior_size != size or prior_sha != bytes.fromhex(sha)[:8]:
        raise ConfigError(
            f"the token prior is for a vocabulary of {prior_size} tokens with SHA-256 {prior_sha.hex()}…, not for this "
            f"one of {size} with {sha[:16]}…; request a new one"
        )
    stream = _BitReader(blob[_HEADER.size :])
    ids, token = [], -1
    for _ in range(count):
        gap = (stream.read_unary() << rice) | stream.read_bits(rice)
        token += gap + 1
        if token >= size:
            raise ConfigError(f"the token prior is damaged: it contains token {token} of {size}")
        ids.append(token)
    return {id_: low + (high - low) * stream.read_bits(4) / MAX_LEVEL for id_ in ids}


def _pack(scores: Mapping[int, float], size: int, sha: str) -> bytes:
    """Encode all scores, however many bytes this takes."""
    ids = sorted(scores)
    gaps = [id_ - previous - 1 for previous, id_ in zip([-1, *ids], ids, strict=False)]
    rice = min(range(25), key=lambda k: sum((gap >> k) + 1 + k for gap in gaps))  # gives the shortest code
    low, high = min(scores.values()), max(scores.values())
    bits = []
    for gap in gaps:
        bits.append("1" * (gap >> rice) + "0")
        if rice:
            bits.append(f"{gap & ((1 << rice) - 1):0{rice}b}")
    for id_ in ids:
        level = round(MAX_LEVEL * (scores[id_] - low) / (high - low)) if high > low else MAX_LEVEL
        bits.append(f"{level:04b}")
    stream = "".join(bits)
    stream += "0" * (-len(stream) % 8)
    head = _HEADER.pack(MAGIC, VERSION, rice, size, len(ids), low, high, bytes.fromhex(sha)[:8])
    return head + int(stream, 2).to_bytes(len(stream) // 8, "big")


class _BitReader:
    """Reads numbers from a stream of bits."""

    def __init__(self, data: bytes) -> None:
        self._bits = "".join(f"{byte:08b}" for byte in data)
        self._position = 0

    def read_unary(self) -> int:
        """Read a number n, which is written as n ones and a zero."""
        end = self._bits.find("0", self._position)
        if end < 0:
            raise ConfigError("the token prior is damaged: it is truncated")
        count, self._position = end - self._position, end + 1
        return count

    def read_bits(self, count: int) -> int:
        if self._position + count > len(self._bits):
            raise ConfigError("the token prior is damaged: it is truncated")
        digits = self._bits[self._position : self._position + count]
        self._position += count
        return int(digits, 2) if digits else 0
