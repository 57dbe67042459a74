"""The pairs that arms are trained on: by the mix of teachers that they come from, and with a random direction."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oven_core.errors import ConfigError
from oven_llm.trace_replay.pairs import LEAST_FAMILIES, grouped, mined
from oven_runs.traces import jsonl
from oven_runs.traces.records import Pair, Reply, Trace

ALL = "all"
WITHOUT = "without "


@dataclass(frozen=True)
class TrainingData:
    """What a training is given, and what it must therefore not be measured on."""

    pairs: tuple[Pair, ...]
    shown: frozenset[str]
    """The statements of all traces' tasks, of every mix: the held-out tasks are the same for all arms."""

    def has_shown(self, statement: str) -> bool:
        """Whether a trace is about the same function, in whatever file and with whatever bug."""
        return _function(statement) in {_function(one) for one in self.shown}


@dataclass(frozen=True)
class Replayed:
    """Traces, and what teachers said at each of their states."""

    traces: tuple[Trace, ...]
    replies: tuple[Reply, ...]
    digest: str

    @classmethod
    def read(cls, traces: Path, replies: Path) -> Replayed:
        """Raises ConfigError for files that cannot be read, and for replies to none of these traces."""
        read = tuple(jsonl.read(traces, Trace))
        said = tuple(jsonl.read(replies, Reply))
        known = {trace.id for trace in read}
        if not any(reply.trace in known for reply in said):
            raise ConfigError(f"{replies} has no reply to a trace of {traces}; name the replies that were made of it")
        digest = hashlib.sha256(traces.read_bytes() + b"\n" + replies.read_bytes()).hexdigest()[:16]
        return cls(read, said, digest)

    @property
    def families(self) -> tuple[str, ...]:
        """Of the teachers that answered, sorted."""
        return tuple(sorted({reply.family for reply in self.replies if reply.action is not None}))

    def mixes(self) -> tuple[str, ...]:
        """All teachers, and all but one family, where the others make a pair."""
        fewer = [f"{WITHOUT}{family}" for family in self.families]
        return (ALL, *(mix for mix in fewer if self._pairs(mix)))

    def data(self, mix: str) -> TrainingData:
        """For trainings on the mix of teachers. Raises as `pairs`."""
        said = (message.content for trace in self.traces for message in trace.prompt if message.role == "user")
        return TrainingData(tuple(self.pairs(mix)), frozenset(said))

    def pairs(self, mix: str) -> list[Pair]:
        """Of the mix of teachers. Raises ConfigError for another mix, and where it makes no pair."""
        if mix != ALL and mix.removeprefix(WITHOUT) not in self.families:
            raise ConfigError(f"no mix of teachers is called {mix!r}; there are {', '.join(self.mixes())}")
        found = self._pairs(mix)
        if not found:
            raise ConfigError(
                f"the teachers ({mix}) make no pair: ask more of them or at more states, at least {LEAST_FAMILIES} "
                "families; `oven-controller traces pairs` says why states have none"
            )
        return found

    def _pairs(self, mix: str) -> list[Pair]:
        left_out = mix.removeprefix(WITHOUT) if mix != ALL else None
        replies = [reply for reply in self.replies if reply.family != left_out]
        return [one.pair for one in mined(self.traces, grouped(replies)).pairs]


def _function(statement: str) -> str:
    """Of the statement `path: function(parameters) what it returns` all but the path."""
    return statement.partition(": ")[2].strip()


def with_random_direction(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """The same pairs, each turned round by a coin: what training on any two actions at these states does."""
    chance = random.Random(f"direction {seed}")
    turned = []
    for pair in pairs:
        other = pair.model_copy(update={"chosen": pair.rejected, "rejected": pair.chosen})
        turned.append(other if chance.random() < 0.5 else pair)
    return turned
