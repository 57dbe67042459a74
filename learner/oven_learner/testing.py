"""A fake link for testing training scripts without a bus. It records messages and makes planned decisions.

    link = FakeLink({3: ("optimizer.lr_scale", 0.5)})          # decided at tick 3, applied before step 4
    with oven.connect(link=link, optimizer=optimizer) as client:
        train(client)
    assert link.receipts()[0].status == "applied"

You can also pass `link=` to `attach`. No controller runs, and no data leaves the process.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from oven_core.protocol.messages import Decision, LearnerMessage, LogMessage, Observation, Receipt, Value
from oven_learner.link.link_interface import SilentLink, UnbuiltMessage, build_message
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import SampleConverter

EXPIRY_TICKS = 10_000
"""Number of ticks after which a planned decision expires."""


class FakeLink(SilentLink):
    """A `Link` for one training run. To answer messages, override `receive`, which is called between steps."""

    def __init__(self, plan: Mapping[int, tuple[str, Value]] | None = None, past: ResumeState | None = None) -> None:
        """Args:
        plan: tick → (actuator, value). The decision is made after the observation of that tick.
        past: the state of earlier incarnations, for a run that resumes.
        """
        self.sent: list[LearnerMessage] = []
        """The learner's messages, in order."""
        self.shown: list[dict[str, Any]] = []
        """The samples of completions, as they would leave the training process."""
        self.incoming: deque[LogMessage] = deque()
        """The messages that the learner receives next: decisions, operator commands and closed steps."""
        self._plan = dict(plan or {})
        self._past = past or ResumeState()

    def open(self) -> ResumeState:
        """Return the state of earlier incarnations."""
        return self._past

    def send(self, unbuilt: UnbuiltMessage) -> None:
        """Record the message, and make the decisions planned for its tick."""
        message = build_message(unbuilt)
        self.sent.append(message)
        if isinstance(message, Observation):
            for tick in [tick for tick in self._plan if tick <= message.tick]:
                self.incoming.append(decision(*self._plan.pop(tick), number=tick, apply_at=tick + 1))

    def show(self, convert: SampleConverter) -> None:
        """Record the sample, unless its conversion raises."""
        with contextlib.suppress(Exception):
            self.shown.append(convert())

    def receive(self) -> LogMessage | None:
        """Return the next message of `incoming`, or None."""
        return self.incoming.popleft() if self.incoming else None

    def observed(self) -> list[Observation]:
        """Return the observations, one per optimizer step."""
        return [message for message in self.sent if isinstance(message, Observation)]

    def receipts(self) -> list[Receipt]:
        """Return the receipts of decisions and commands."""
        return [message for message in self.sent if isinstance(message, Receipt)]

    def series(self, metric: str) -> list[float]:
        """Return a metric's value at each observation. Raises KeyError if an observation does not contain it."""
        return [observation.metrics[metric] for observation in self.observed()]


def decision(
    actuator: str,
    value: Value,
    *,
    number: int = 1,
    apply_at: int = 1,
    expires: int | None = None,
    verdict: str = "adopted",
    snapshot_first: bool = False,
) -> Decision:
    """Return a decision like those of the mesh. It takes effect before the step of tick `apply_at`, and expires after
    tick `expires`. Decisions with the same `number` are copies of the same decision."""
    tick = apply_at - 1
    return Decision.model_validate(
        {
            "id": f"{number:012d}-00",
            "ballot": "b",
            "actuator": actuator,
            "verdict": verdict,
            "value": value,
            "reason": "",
            "tally": (),
            "tick": tick,
            "apply_at_tick": apply_at,
            "expires_at_tick": tick + EXPIRY_TICKS if expires is None else expires,
            "snapshot_first": snapshot_first,
        }
    )
