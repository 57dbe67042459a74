"""For tests of training scripts: a link without a bus, which keeps what the learner says and decides what a test wants.

    link = FakeLink({3: ("optimizer.lr_scale", 0.5)})          # decided at tick 3, carried out before step 4
    with oven.connect(link=link, optimizer=optimizer) as client:
        train(client)
    assert link.receipts()[0].status == "applied"

`attach` takes `link=`, too. No controller runs, and nothing leaves the process.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from oven_core.protocol.messages import Decision, LearnerMessage, LogMessage, Observation, Receipt, Value
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel

EXPIRES_TICKS = 10_000
"""So long after its tick a decision of the plan may still be carried out."""


class FakeLink:
    """A `Link` for one training. Subclass it to answer what is said: `receive` is called between steps."""

    dropped = 0
    """Observations that the log will never have: none."""

    def __init__(self, plan: Mapping[int, tuple[str, Value]] | None = None, past: ResumeState | None = None) -> None:
        """`plan`: tick → what is decided once that tick has been observed, an actuator and its value. `past`: what the
        log says of earlier incarnations, for a run that resumes."""
        self.sent: list[LearnerMessage] = []
        """All that the learner said, in order."""
        self.shown: list[dict[str, Any]] = []
        """The samples of completions that the training handed over, as they would leave it."""
        self.incoming: deque[LogMessage] = deque()
        """What the learner is given next: decisions, operators' commands, closed steps."""
        self._plan = dict(plan or {})
        self._past = past or ResumeState()

    def open(self) -> ResumeState:
        """What earlier incarnations left."""
        return self._past

    def begin(self) -> None:
        """Nothing has to be waited for."""

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        """Keep the message, and decide what the plan has for its tick."""
        message = make()
        self.sent.append(message)
        if isinstance(message, Observation):
            for tick in [tick for tick in self._plan if tick <= message.tick]:
                self.incoming.append(decision(*self._plan.pop(tick), number=tick, apply_at=tick + 1))

    def show(self, make: Parcel) -> None:
        """Keep the sample; one whose text or redaction raises is not shown."""
        with contextlib.suppress(Exception):
            self.shown.append(make())

    def receive(self) -> LogMessage | None:
        """The next of `incoming`."""
        return self.incoming.popleft() if self.incoming else None

    def close(self, timeout_s: float) -> bool:
        """Everything was sent."""
        return True

    def observed(self) -> list[Observation]:
        """The observations, one per optimizer step."""
        return [message for message in self.sent if isinstance(message, Observation)]

    def receipts(self) -> list[Receipt]:
        """The outcome of decisions and commands."""
        return [message for message in self.sent if isinstance(message, Receipt)]

    def series(self, metric: str) -> list[float]:
        """A metric's value at each observation. Raises KeyError where one has none."""
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
    """As the mesh publishes one: to be carried out before the step of tick `apply_at`, while that is at most `expires`.
    Two of one `number` are the same decision."""
    made_at = apply_at - 1
    return Decision.model_validate(
        {
            "id": f"{number:012d}-00",
            "ballot": "b",
            "actuator": actuator,
            "verdict": verdict,
            "value": value,
            "reason": "",
            "tally": (),
            "tick": made_at,
            "apply_at_tick": apply_at,
            "expires_at_tick": made_at + EXPIRES_TICKS if expires is None else expires,
            "snapshot_first": snapshot_first,
        }
    )
