"""The corpus: sources of this Python's standard library, which every machine has. Nothing is downloaded.

It is split by file, so that no held-out row has a neighbour among the training rows. Tests, and packages that
distributions ship separately (tkinter, idlelib and others), are left out. Another Python version has other text and
other losses, so compare only runs of one version.
"""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch

from oven_bench.gym.seeded_draws import generator
from oven_core.errors import ConfigError

LENGTH = 64
"""Bytes that a row predicts; a row holds one more."""
SHARES = {"modules": 0.4, "packages": 0.25, "network": 0.25, "tables": 0.1}
"""The sub-corpora, and the user's own mixture of them."""
FOLDERS = {
    "packages": "collections concurrent ctypes importlib logging multiprocessing re sqlite3 tomllib unittest zoneinfo",
    "network": "asyncio email html http json urllib wsgiref xml xmlrpc",
    "tables": "encodings",
    "prose": "pydoc_data",
}
"""Sub-corpus → folders of the standard library. `modules` are the files of its top level."""
TESTS = {"test", "tests"}
HELD_OUT_OF = 8
"""One file in eight is held out."""
BYTES = 2**20
"""Bytes of a sub-corpus, at most."""
LEAST_ROWS = 4000
"""Rows of a sub-corpus, at least. An episode of 230 steps reads fewer than 2,000 rows, and should read none twice."""
GAUGED, JUDGED = 64, 512
"""Held-out rows behind `eval/loss`, and behind the score. They are disjoint: no arm sees the rows it is judged on."""


@dataclass(frozen=True)
class Corpus:
    train: Mapping[str, torch.Tensor]  # each uint8 [rows, LENGTH + 1]
    prose: torch.Tensor  # uint8 [rows, LENGTH + 1]: documentation, which is in no mixture and not held out
    gauged: torch.Tensor  # int64 [GAUGED, LENGTH + 1]
    judged: torch.Tensor  # int64 [JUDGED, LENGTH + 1]


@cache
def corpus() -> Corpus:
    """Read the corpus, once per process. Raises ConfigError if the standard library has too few sources."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files: dict[str, list[Path]] = {kind: [] for kind in (*SHARES, "prose")}
    for kind, folders in FOLDERS.items():
        for folder in folders.split():
            files[kind] += [
                path for path in (root / folder).rglob("*.py") if not TESTS & {*path.relative_to(root).parts}
            ]
    files["modules"] = list(root.glob("*.py"))
    train: dict[str, torch.Tensor] = {}
    gauged: list[torch.Tensor] = []
    judged: list[torch.Tensor] = []
    for kind, share in SHARES.items():
        ordered = sorted(files[kind], key=lambda path: (_mark(path.relative_to(root)), path))
        rest = [path for path in ordered if _mark(path.relative_to(root)) % HELD_OUT_OF]
        train[kind] = _rows(rest, BYTES)
        held_out = _rows([path for path in ordered if path not in set(rest)], BYTES // HELD_OUT_OF)
        counts = [round(share * GAUGED), round(share * JUDGED)]
        if len(train[kind]) < LEAST_ROWS or len(held_out) < sum(counts):
            raise ConfigError(
                f"{root} holds {len(train[kind])} rows of {LENGTH + 1} bytes of {kind!r} to train on, {len(held_out)} "
                f"held out; {LEAST_ROWS} and {sum(counts)} are needed: use a Python with its library's sources"
            )
        spread = torch.linspace(0, len(held_out) - 1, sum(counts)).long()  # over the files
        drawn = torch.randperm(sum(counts), generator=generator("held out", kind))
        picked = held_out[spread[drawn]].long()
        gauged.append(picked[: counts[0]])
        judged.append(picked[counts[0] :])
    prose = _rows(sorted(files["prose"]), BYTES)
    if len(prose) < LEAST_ROWS:
        raise ConfigError(f"{root} holds {len(prose)} rows of documentation (pydoc_data); {LEAST_ROWS} are needed")
    return Corpus(train, prose, torch.cat(gauged), torch.cat(judged))


@lru_cache(maxsize=16)
def pool(rows: int, seed: int) -> torch.Tensor:  # int64 [rows, LENGTH + 1]
    """Training rows in the user's mixture, the same for the same arguments. Do not write to them."""
    drawn = generator("pool", seed)
    kinds = torch.multinomial(torch.tensor(list(SHARES.values())), rows, replacement=True, generator=drawn)
    train = [corpus().train[kind] for kind in SHARES]
    places = torch.rand(rows, generator=drawn).tolist()
    picked = [train[kind][int(share * len(train[kind]))] for kind, share in zip(kinds.tolist(), places, strict=True)]
    return torch.stack(picked).long()


def _mark(path: Path) -> int:
    """A hash of the path that is the same on every machine."""
    return zlib.crc32(path.as_posix().encode())


def _rows(files: list[Path], most: int) -> torch.Tensor:  # uint8 [rows, LENGTH + 1]
    text = bytearray()
    for path in files:
        if len(text) < most:
            text += path.read_bytes()
    text = text[: min(len(text), most) // (LENGTH + 1) * (LENGTH + 1)]
    return torch.frombuffer(text, dtype=torch.uint8).view(-1, LENGTH + 1) if text else torch.empty(0, LENGTH + 1)


def pair(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of rows [B, LENGTH + 1], or of the pair [2, B, LENGTH] that a fault returned."""
    return (rows[0], rows[1]) if rows.dim() == 3 else (rows[:, :-1], rows[:, 1:])
