"""A trainee of the gym under the real client, and a link that orders trials of what it is told to."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from oven_bench.gym.arms.auto_rate import RATE
from oven_bench.gym.episode import RULES, Branches, Training
from oven_bench.gym.fault import NOTHING, Trainee
from oven_core.mesh.state import held_out
from oven_core.protocol.messages import LearnerMessage, LogMessage, MetricSpec, Observation, RunStarted, Value
from oven_core.protocol.rules import Rules
from oven_core.protocol.trial_messages import TrialArm, TrialEnded, TrialStarted
from oven_learner.client.client import OvenClient
from oven_learner.rollback.in_memory import Snapshots
from oven_learner.testing import FakeLink, decision
from oven_learner.trials import comparison
from oven_learner.trials.branchable import Branchable

Changes = Mapping[str, Value]
DEFAULT = Rules()
NEVER = 1e12
"""A margin that nothing beats: the control is kept whatever the trial shows."""
EXPIRES_TICKS = 100
"""After an order. The steps of a kept arm come all at once: at the first of them the run is further already."""
LENGTH = 1000
"""Steps that a run announces: more than it plays."""


@dataclass(frozen=True, slots=True)
class Order:
    """One trial: what each arm beside the control changes."""

    arms: Sequence[Changes]
    steps: int
    cooldown: int = 0
    margin: float = DEFAULT.trial_margin


def usual(trainee: Trainee, *arms: Changes, margin: float = DEFAULT.trial_margin) -> Order:
    """With the steps that the rules give to such changes."""
    kinds = {trainee.actuators.spec(name).kind for arm in arms for name in arm if name in trainee.actuators}
    steps = max((DEFAULT.trial_steps[kind] for kind in kinds), default=DEFAULT.trial_steps["action"])
    rate = any(RATE in arm for arm in arms)
    return Order(arms, steps, DEFAULT.trial_cooldown if rate else 0, margin)


def sign(trainee: Trainee) -> int:
    """+1 where a higher reading is better."""
    reading = held_out(trainee.metrics)
    return 1 if reading is not None and reading.better == "up" else -1


@dataclass(slots=True)
class Seen:
    """A trial that ended, as the log has it and as the bench saw it."""

    order: Order
    ended: TrialEnded
    steps: int
    """Gradient steps that the trainee computed while it was under way."""
    seconds: float
    """Wall time from the link's handing it over to the learner's answer."""
    copies: int
    """Most copies that were held at a time."""
    left: int = 0
    """Those that were still held when the run ended."""
    gone_on: int = 0
    """Steps of this trial that the run's log has as its own."""

    @property
    def would_keep(self) -> bool:
        """Whether the product's margin would have kept a change."""
        return bool(comparison.best(self.ended.arms, DEFAULT.trial_margin))


class OrderingLink(FakeLink):
    """Orders one trial after another: the next as soon as the one before it has ended and its tick has come."""

    def __init__(self, orders: Iterable[tuple[int, Order]], direct: Mapping[int, Changes] | None = None) -> None:
        """`orders`: (first tick, trial). `direct`: tick → changes to make at that boundary without one."""
        super().__init__()
        self.seen: list[Seen] = []
        self.steps = 0
        """Gradient steps computed so far; who drives the training counts them here."""
        self.copies: Copies | None = None
        self._orders = deque(orders)
        self._direct = dict(direct or {})
        self._reading = ""
        self._open: Order | None = None
        self._began = (0, 0.0)
        self._ended_at = -1

    @property
    def waits(self) -> bool:
        """Whether a trial is under way or still to be ordered."""
        return self._open is not None or bool(self._orders)

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        message = make()
        super().send(lambda: message, droppable=droppable)
        if isinstance(message, RunStarted):
            self._reading = message.trials
        elif isinstance(message, TrialEnded):
            self._take(message)
        elif isinstance(message, Observation):
            if self.seen and self.steps == self._ended_at:
                self.seen[-1].gone_on += 1
            self._look(message.tick)

    def receive(self) -> LogMessage | None:
        message = super().receive()
        if isinstance(message, TrialStarted):
            self._began = self.steps, time.perf_counter()
            if self.copies is not None:
                self.copies.most = 0
        return message

    def _take(self, ended: TrialEnded) -> None:
        assert self._open is not None
        order, self._open, self._ended_at = self._open, None, self.steps
        steps, began = self._began
        copies = self.copies.most if self.copies is not None else 0
        self.seen.append(Seen(order, ended, self.steps - steps, time.perf_counter() - began, copies))

    def _look(self, tick: int) -> None:
        for number, (name, value) in enumerate(self._direct.pop(tick, {}).items()):
            self.incoming.append(decision(name, value, number=tick * 10 + number, apply_at=tick + 1))
        if self._open is None and self._orders and tick >= self._orders[0][0]:
            _, self._open = self._orders.popleft()
            self.incoming.append(self._started(self._open, tick))

    def _started(self, order: Order, tick: int) -> TrialStarted:
        arms = tuple(
            TrialArm(decisions=tuple(f"{tick}-{index}-{name}" for name in changes), changes=dict(changes))
            for index, changes in enumerate(order.arms)
        )
        return TrialStarted(
            id=f"trial-{tick}",
            tick=tick,
            expires_at_tick=tick + EXPIRES_TICKS,
            arms=(TrialArm(), *arms),
            steps=order.steps,
            cooldown=order.cooldown,
            reading=self._reading,
            margin=order.margin,
        )


class Copy:
    """A state that a trial holds, which says when it is let go."""

    def __init__(self, state: Any, copies: Copies) -> None:
        self.state, self._copies = state, copies
        copies.live += 1
        copies.most = max(copies.most, copies.live)

    def __del__(self) -> None:
        self._copies.live -= 1


@dataclass(slots=True)
class Copies:
    """A training that a trial branches, with a count of the copies that it holds at a time."""

    training: Branchable
    examples_of: Callable[[], Sequence[float]]
    """What stands for the training's own examples: other ones, or a planted reading."""
    by_clock: bool = False
    by_steps: bool = False
    lagging: frozenset[str] = frozenset()
    live: int = 0
    most: int = 0

    @property
    def reading(self) -> MetricSpec:
        return self.training.reading

    def problem(self) -> str:
        return self.training.problem()

    def take(self) -> Copy:
        return Copy(self.training.take(), self)

    def restore(self, state: Copy) -> None:
        self.training.restore(state.state)

    def examples(self) -> Sequence[float]:
        return self.examples_of()

    def finish(self) -> None:
        self.training.finish()


class Run:
    """One training. `examples` makes, of the trainee, what a trial reads in place of its own examples."""

    def __init__(
        self,
        trainee: Trainee,
        link: OrderingLink,
        examples: Callable[[Trainee], Callable[[], Sequence[float]]] = lambda trainee: trainee.examples,
    ) -> None:
        torch.manual_seed(trainee.seed)
        random.seed(trainee.seed)
        self.trainee, self.link = trainee, link
        self._training = Training(trainee, NOTHING, None)
        self.copies = link.copies = Copies(Branches(self._training, trainee), examples(trainee))
        self._actuators = trainee.actuators.copy()
        self._client = OvenClient(
            link,
            self._actuators,
            recipe=trainee.kind,
            metrics=trainee.metrics,
            max_steps=LENGTH,
            charge_rollbacks=True,
            rules=RULES,
            snapshots=Snapshots(self._training.take, self._training.restore, credit=math.inf),
            trials=self.copies,
        )
        self._client.start()

    def play(self, tick: int) -> int:
        """Up to a tick, and until all trials that were ordered have ended. Returns the tick."""
        while self._client.tick < tick or self.link.waits:
            metrics = self._training.train_step()
            self.link.steps += 1
            self._client.observe(self._training.step, metrics)
            self._client.poll()
        return self._client.tick

    def close(self) -> list[Seen]:
        """The trials that ended."""
        self._client.close("completed")
        self.link.seen[-1:] = [replace(seen, left=self.copies.live) for seen in self.link.seen[-1:]]
        return self.link.seen

    def fingerprint(self) -> str:
        """Of all that is trained, set and logged: weights, optimizer, generators, position in the data, knobs, and
        every step's metrics in the log."""
        told = [(one.tick, one.step, dict(one.metrics)) for one in self.link.observed()]
        knobs = {spec.name: spec.value for spec in self._actuators.specs()}
        place = (self._client.tick, self._client.step)
        generators = (torch.get_rng_state(), random.getstate())
        return fingerprint((self.trainee.branch_state(), knobs, place, generators, told))


def fingerprint(value: Any) -> str:
    """Of nested values, bit for bit. Raises TypeError for what it does not know."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterable[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().numpy().tobytes()
    elif isinstance(value, Mapping):
        for key in value:
            yield repr(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, set | frozenset):
        yield repr(sorted(value)).encode()
    elif value is None or isinstance(value, bool | int | str):
        yield repr(value).encode()
    elif isinstance(value, float):
        yield value.hex().encode()
    else:
        raise TypeError(f"a {type(value).__name__} has no fingerprint")
