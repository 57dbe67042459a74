"""Golden documents: how they are written, read and held against what is computed now."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

Json: TypeAlias = Any
"""What JSON can hold: mappings with strings as keys, lists, strings, numbers, booleans and None."""

FOLDER = Path(__file__).parent / "data"
CHECKOUT = Path(__file__).parents[2]
WIDTH = 160
"""Characters of a line that says what differs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a check leaves out, to be quicker. The defaults leave nothing out."""

    only: str = "*"
    """A pattern for the names of cases."""

    def takes(self, name: str) -> bool:
        return fnmatchcase(name, self.only)

    @property
    def whole(self) -> bool:
        return self == Limits()


def digest(*parts: str | bytes) -> str:
    """Sixteen hexadecimal digits of SHA-256 over the parts, each with its length."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode())
        total.update(data)
    return total.hexdigest()[:16]


@cache
def numbers() -> str:
    """What this Python and this processor make of a fixed computation, which is none of the project's: where it is
    another, so are all losses, and they cannot be compared. The text that is trained on is part of it."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = [path.read_bytes() for path in sorted(library.glob("*.py"))]
    made = torch.Generator().manual_seed(1)
    weights = [torch.randn(48, 48, generator=made).requires_grad_() for _ in range(3)]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, fused=True)
    losses = []
    for _ in range(5):
        x = torch.randn(8, 64, 48, generator=made)
        q, k, v = (F.layer_norm(x @ weight, (48,)).view(8, 64, 2, 24).transpose(1, 2) for weight in weights)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(-1, 48)
        loss = F.cross_entropy(out, torch.randint(48, (len(out),), generator=made)) + out.exp().log1p().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        losses += [loss.item(), float(nn.utils.clip_grad_norm_(weights, 1.0))]
        optimizer.step()
    return digest(*sources, repr(sys.version_info[:3]), torch.__version__, *(float(loss).hex() for loss in losses))


def digest_of(values: Iterable[Json]) -> str:
    """Of values, each as JSON with sorted keys."""
    return digest(*(json.dumps(value, sort_keys=True, ensure_ascii=False) for value in values))


def written(document: Json) -> str:
    """As text with sorted keys: mappings that hold mappings are spread over lines, everything else is one line."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Json, indent: str = "") -> Iterator[str]:
    if not (isinstance(document, Mapping) and any(isinstance(value, Mapping) for value in document.values())):
        yield json.dumps(document, sort_keys=True, ensure_ascii=False, allow_nan=False)
        return
    yield "{"
    last = len(document) - 1
    for index, key in enumerate(sorted(document)):
        first, *rest = _lines(document[key], indent + " ")
        lines = [f"{indent} {json.dumps(key, ensure_ascii=False)}: {first}", *rest]
        yield from lines[:-1]
        yield lines[-1] + ("" if index == last else ",")
    yield indent + "}"


def read(name: str) -> Json:
    """A stored document, by its path under FOLDER: parsed where it is JSON, else its lines."""
    text = (FOLDER / name).read_text()
    return json.loads(text) if name.endswith(".json") else text.splitlines()


def write(name: str, document: Json | bytes) -> int:
    """Returns the file's size."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(document, bytes):
        data = document
    else:
        data = (written(document) if name.endswith(".json") else "".join(f"{line}\n" for line in document)).encode()
    path.write_bytes(data)
    return len(data)


def differences(stored: Json, now: Json, where: str = "") -> Iterator[str]:
    """One line for each place where they part."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for key in sorted(stored.keys() | now.keys()):
            inside = f"{where}: {key}" if where else str(key)
            if key not in now:
                yield _line(f"{inside} is gone; it was {_short(stored[key])}")
            elif key not in stored:
                yield _line(f"{inside} is new: {_short(now[key])}")
            else:
                yield from differences(stored[key], now[key], inside)
    elif _sequence(stored) and _sequence(now):
        pairs = list(zip(stored, now, strict=False))
        parted = next((index for index, (was, is_) in enumerate(pairs) if was != is_), None)
        if parted is not None:
            yield from differences(*pairs[parted], f"{where}[{parted}]")
        elif len(stored) != len(now):
            yield _line(f"{where} has {len(now)} entries; it had {len(stored)}")
    elif stored != now or type(stored) is not type(now):
        yield _line(f"{where} is {_short(now)}; it was {_short(stored)}")


def _sequence(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _short(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _line(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
