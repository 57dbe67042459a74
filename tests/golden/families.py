"""Every fault family of the gym: what it draws for a seed, and the run under that fault beside its twin without it.

A run begins from its twin's copy at the onset and goes on, with nobody steering, until the fault has acted for a block
of steps. Every metric of every step is in the digest of its block; some values stand there as they are, as hexadecimal
floats.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.golden.store import Json, Limits, digest
from torch import nn
from torch.nn import functional as F

from oven_bench.gym import episode_schedule
from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.faults import catalogue
from oven_bench.gym.task_table import USUAL, Kind, task
from oven_bench.gym.trainee_factory import make

SEEDS = (1, 2)
BLOCK = 10
"""Steps behind one digest."""
LEAST, MOST = 20, 60
"""Steps of a run after the onset: at least so many, and as many more as it takes until a block of them has passed since
the first that differed from the twin's; so many where none does."""
FILE = "families/{}.json"


def known() -> dict[str, type[Fault]]:
    """Those of the usual tasks, held out or not, by name: what the trials set's tasks compute is not recorded."""
    return {name: family for name, family in catalogue.families().items() if family.kind in USUAL}


def documents(limits: Limits) -> Iterator[tuple[str, Json]]:
    """Files, and what belongs there."""
    chosen = {name: family for name, family in known().items() if limits.takes(name)}
    for kind in sorted({family.kind for family in chosen.values()}):
        cases: dict[str, Json] = {}
        twins: dict[str, Json] = {}
        for seed in SEEDS:
            twin = Twin(kind, seed)
            for name, family in chosen.items():
                if family.kind == kind:
                    cases[f"{name} {seed}"] = fate(family, seed, twin, limits)
            twins[str(seed)] = twin.told()
        yield FILE.format(kind), {"numbers": numbers(), "twins": twins, "cases": cases}


def limited(document: Json, limits: Limits) -> Json:
    """The part of a stored document that `documents` makes under these limits."""
    cases = {name: case for name, case in document["cases"].items() if limits.takes(name.rpartition(" ")[0])}
    return document | {"cases": {name: cut(case, limits) for name, case in cases.items()}}


def cut(case: Mapping[str, Json], limits: Limits) -> dict[str, Json]:
    """A stored case as `fate` gives it under these limits."""
    if limits.steps is None:
        return dict(case)
    blocks = -(-limits.steps // BLOCK)
    first = case["first"]
    shown = {name: case[name][:blocks] for name in ("digests", "values")}
    return {**case, **shown, "first": first if first is not None and first < blocks * BLOCK else None}


class Twin:
    """A run without a fault, up to the last step that a run beside it has."""

    STEPS = episode_schedule.LATEST + MOST

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.seed = kind, seed
        trainee = make(kind, seed)
        self.metrics: list[dict[str, float]] = []
        self._states: dict[int, Mapping[str, Any]] = {}
        for step in range(self.STEPS):
            if step == 0 or episode_schedule.PREFIX <= step <= episode_schedule.LATEST:
                self._states[step] = trainee.state()
            self.metrics.append(trainee.train_step())

    def at(self, step: int) -> Trainee:
        """A trainee that has come so far: no step, or as many as an onset can have before it."""
        trainee = make(self.kind, self.seed)
        trainee.restore(self._states[step])
        trainee.gradient_steps = step
        return trainee

    def told(self) -> dict[str, Json]:
        return _told(self.kind, self.metrics)


def fate(family: type[Fault], seed: int, twin: Twin, limits: Limits) -> dict[str, Json]:
    """What was drawn, and what became of the run under it: `first` is the first step after the onset that differs from
    the twin's, None where none does."""
    case = episode_schedule.drawn(family, seed)
    began = min(case.onset, episode_schedule.LATEST)
    trainee = twin.at(began)
    most = min(MOST, limits.steps or MOST)
    metrics: list[dict[str, float]] = []
    first: int | None = None
    while len(metrics) < most and (first is None or len(metrics) < max(LEAST, first + BLOCK)):
        for _ in range(BLOCK):
            sound = twin.metrics[began + len(metrics)]
            metrics.append(trainee.train_step(case))
            if first is None and [*_exact(metrics[-1])] != [*_exact(sound)]:  # NaN is equal to itself here
                first = len(metrics) - 1
    return drawn(case) | {"first": first} | _told(family.kind, metrics)


def drawn(case: Fault) -> dict[str, Json]:
    """What a case is, without a run."""
    return {"onset": case.onset, "drawn": parameters(case)}


def parameters(case: Fault) -> Json:
    """A case's fields by name, with exact floats. The names of classes are not in it."""
    return plain(case)


def plain(value: Any) -> Json:
    """As JSON holds it without a loss; the order of a mapping is kept, since a fault may go through one in order."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value.hex()
        case bytes():
            return value.hex()
        case Mapping():
            return [[plain(key), plain(inside)] for key, inside in value.items()]
        case tuple() | list():
            return [plain(inside) for inside in value]
        case slice():
            return [value.start, value.stop, value.step]
        case frozenset() | set():
            return sorted((plain(inside) for inside in value), key=json.dumps)
        case torch.Tensor():
            return digest(str(value.dtype), str(tuple(value.shape)), value.contiguous().numpy().tobytes())
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return {name: plain(inside) for name, inside in vars(value).items()}


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


def _told(kind: Kind, metrics: Sequence[Mapping[str, float]]) -> dict[str, Json]:
    """Digests, and the last value of the metric that the task shows, a block each; the last one may be shorter."""
    blocks = [metrics[start : start + BLOCK] for start in range(0, len(metrics), BLOCK)]
    last = [block[-1].get(task(kind).shown) for block in blocks]
    return {
        "digests": [digest(*(text for step in block for text in _exact(step))) for block in blocks],
        "values": [None if value is None else float(value).hex() for value in last],
    }


def _exact(step: Mapping[str, float]) -> Iterator[str]:
    for name in sorted(step):
        yield f"{name} {float(step[name]).hex()}"
