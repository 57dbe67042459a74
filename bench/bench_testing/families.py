"""Every fault family of the gym: what it draws for a seed, and the run under that fault beside its twin without it.

A run begins from its twin's copy at the onset and goes on, with nobody steering, until the fault has acted for a block
of steps. Every metric of every step is in the digest of its block; some values stand there as they are, as hexadecimal
floats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from tests.golden.store import Json, Limits, digest, numbers

from oven_bench.gym.fault import Fault, Trainee, make
from oven_bench.gym.faults import families
from oven_bench.gym.shared_prefix import LATEST, PREFIX, draw
from oven_bench.gym.task_table import Kind

SEEDS = (1, 2)
BLOCK = 10
"""Steps behind one digest."""
LEAST, MOST = 20, 60
"""Steps of a run after the onset: at least so many, and as many more as it takes until a block of them has passed since
the first that differed from the twin's; so many where none does."""
FILE = "families/{}.json"
SHOWN = {"pretraining": "loss", "grpo": "reward"}
"""Task → the metric that is stored as it is, for people."""


def documents(limits: Limits) -> Iterator[tuple[str, Json]]:
    """Files, and what belongs there."""
    chosen = {name: family for name, family in families().items() if limits.takes(name)}
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

    STEPS = LATEST + MOST

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.seed = kind, seed
        trainee = make(kind, seed)
        self.metrics: list[dict[str, float]] = []
        self._states: dict[int, Mapping[str, Any]] = {}
        for step in range(self.STEPS):
            if step == 0 or PREFIX <= step <= LATEST:
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
    case = draw(family, seed)
    began = min(case.onset, LATEST)
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


def _told(kind: Kind, metrics: Sequence[Mapping[str, float]]) -> dict[str, Json]:
    """Digests, and the last value of the metric that the task shows, a block each; the last one may be shorter."""
    blocks = [metrics[start : start + BLOCK] for start in range(0, len(metrics), BLOCK)]
    last = [block[-1].get(SHOWN[kind]) for block in blocks]
    return {
        "digests": [digest(*(text for step in block for text in _exact(step))) for block in blocks],
        "values": [None if value is None else float(value).hex() for value in last],
    }


def _exact(step: Mapping[str, float]) -> Iterator[str]:
    for name in sorted(step):
        yield f"{name} {float(step[name]).hex()}"
