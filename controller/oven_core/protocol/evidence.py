"""The evidence of a vote: the kind of measurement on which it rests, and the metrics that it read.

A vote has one signal, an entry `signal:KIND:METRIC,METRIC` of `Vote.evidence`. Two votes are independent if their
signals have different kinds and no metric in common.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from oven_core.protocol.messages import MetricSpec

EvidenceKind: TypeAlias = Literal[
    "gradients", "loss", "held_out", "rewards", "judges", "policy", "data", "weights", "schedule", "graph"
]
"""Gradients and steps; the training loss; readings on held-out data; rewards; the scores of single judges; statistics
of the policy, such as its entropy; the data; the weights; the run's progress; the knowledge graph."""
GRAPH: Final = "graph"
KINDS: Final[tuple[EvidenceKind, ...]] = get_args(EvidenceKind)

SIGNAL_PREFIX: Final = "signal:"
SYMPTOM_PREFIX: Final = "symptom:"
"""Prefix of evidence that names a symptom, which is a node of the graph: "symptom:loss_spike"."""

_KIND_OF: Final[tuple[tuple[str, EvidenceKind], ...]] = (
    ("progress", "schedule"),
    ("learning_rate", "schedule"),
    ("eval/*", "held_out"),
    ("eval_*", "held_out"),
    ("rewards/*", "judges"),
    ("committee/*", "judges"),
    ("calibration/*", "judges"),
    ("confidence/*", "judges"),
    ("reward*", "rewards"),
    ("frac_reward_zero_std", "rewards"),
    ("advantage/*", "rewards"),
    ("optim/weight*", "weights"),
    ("grad*", "gradients"),
    ("optim/*", "gradients"),
    ("update_ratio*", "gradients"),
    ("weight*", "weights"),
    ("entropy*", "policy"),
    ("kl*", "policy"),
    ("frontier/*", "policy"),
    ("completions/*", "policy"),
    ("data*", "data"),
    ("channel/*", "loss"),
    ("*loss*", "loss"),
)
"""Pattern of standard metrics → kind. The first match counts."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The measurement on which a vote rests."""

    kind: EvidenceKind
    metrics: tuple[str, ...]

    @property
    def entry(self) -> str:
        """The signal as an entry of `Vote.evidence`."""
        return f"{SIGNAL_PREFIX}{self.kind}:{','.join(self.metrics)}"

    def is_independent_of(self, second: Signal) -> bool:
        """Return whether the signals are of different kinds and share no metric."""
        return self.kind != second.kind and not set(self.metrics).intersection(second.metrics)


def read_signal(evidence: Iterable[str]) -> Signal | None:
    """Return the first valid signal among a vote's evidence, or None if there is none.

    It is valid if the kind is known and it names a metric. Only the graph reads no metric."""
    for entry in evidence:
        if entry.startswith(SIGNAL_PREFIX):
            kind, _, names = entry.removeprefix(SIGNAL_PREFIX).partition(":")
            metrics = tuple(filter(None, names.split(",")))
            if kind in KINDS and (metrics or kind == GRAPH):
                return Signal(kind, metrics)
    return None


def read_symptoms(evidence: Iterable[str]) -> tuple[str, ...]:
    """Return the symptoms that a vote's evidence names, as nodes of the knowledge graph, each once."""
    entries = (entry.removeprefix(SYMPTOM_PREFIX) for entry in evidence if entry.startswith(SYMPTOM_PREFIX))
    return tuple(dict.fromkeys(entries))


def signal_of_metrics(names: Iterable[str], metrics: Sequence[MetricSpec] = ()) -> Signal | None:
    """Return the signal of the metrics with these names, whose kind is that of the first metric with a known kind.
    Return None if no kind is known.

    `metrics` are those that the run announces. One that is held out is of that kind. A pattern such as `reward/*`
    stands for all announced metrics that match it, so that another vote that reads one of them is not independent."""
    read = tuple(name for pattern in names for name in _matching_names(pattern, metrics))
    held_out = {metric.name for metric in metrics if metric.held_out}
    for name in read:
        kind = "held_out" if name in held_out else _kind_of(name)
        if kind is not None:
            return Signal(kind, read)
    return None


def _matching_names(pattern: str, metrics: Sequence[MetricSpec]) -> list[str]:
    """Return the metrics that match the pattern, or the pattern itself if it is a name, or none matches."""
    return ("*" in pattern and fnmatch.filter((metric.name for metric in metrics), pattern)) or [pattern]


@functools.lru_cache(maxsize=4096)
def _kind_of(metric: str) -> EvidenceKind | None:
    return next((kind for pattern, kind in _KIND_OF if fnmatch.fnmatchcase(metric, pattern)), None)
