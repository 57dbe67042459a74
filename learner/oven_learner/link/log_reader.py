"""Reads the run's log for the learner. It reads the state of earlier incarnations, and then new decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from oven_core.bus.connection import Bus
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import Decision, LogMessage, RunStarted, StepClosed
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.security.signing import Keyring
from oven_core.telemetry import tracing
from oven_learner.link.link_interface import message_id
from oven_learner.link.resume_state import ResumeState, check_signer, read_resume_state

log = logging.getLogger("oven.learner")


class LogReader:
    """Reads decisions, operator commands and closed steps, across reconnections."""

    def __init__(
        self,
        run: str,
        keyring: Keyring,
        secret: bytes,
        contexts: tracing.Contexts,
        deliver: Callable[[int, LogMessage], object],
    ) -> None:
        """Args:
        secret: the key from which this learner's message ids are computed.
        contexts: receives the trace contexts of adopted decisions.
        deliver: receives each event for the learner, with its sequence number.
        """
        self.progress = 0
        """Number of events of earlier incarnations read so far."""
        self._run, self._keyring, self._secret = run, keyring, secret
        self._contexts, self._deliver = contexts, deliver
        self._subjects = Subjects(run)
        self._may_begin = asyncio.Event()
        self._last_read = 0  # a sequence number
        self._is_announced = False  # whether this learner's RunStarted is in the log
        self._is_superseded = False  # whether a second learner has started later under this run's name

    def begin(self) -> None:
        self._may_begin.set()

    async def catch_up(self, bus: Bus) -> ResumeState:
        """Return the state of earlier incarnations. Raises BusError if the run has no log, and ConfigError if it is
        signed with another learner's key."""
        past = await read_resume_state(bus, self._run, self._keyring, self._count_event)
        check_signer(bus, self._run, past)
        self._last_read = past.last_seq
        return past

    async def take_over(self, bus: Bus, last_seq: int) -> None:
        """Take over from another reader of the same learner, which has delivered all events up to `last_seq`."""
        self._last_read, self._is_announced = last_seq, True
        head = await bus.head(self._run)
        if head:
            subjects = [self._subjects.run, self._subjects.operator("*")]
            async for event in bus.read(self._run, until=head, subjects=subjects):
                self._keyring.verify(event)  # learns the signers' keys

    async def run(self, bus: Bus) -> None:
        """Deliver events from the log. A plain subscription might miss a decision or receive it twice. Skip decisions
        that were not adopted, because unpacking one would cost the training thread 150 µs."""
        await self._may_begin.wait()
        subjects = self._subjects
        patterns = [subjects.run, subjects.decision("*"), subjects.operator("*"), subjects.step("*")]
        async for logged in bus.read(self._run, after=self._last_read, subjects=patterns):
            event = self._keyring.verify(logged)
            self._last_read = event.seq
            if isinstance(event.body, RunStarted):
                self._check_superseded(event.body, event.message_id)
            if isinstance(event.body, Malformed):
                log.warning("ignored the malformed event %d on %s: %s", event.seq, event.subject, event.body.reason)
            if isinstance(event.body, Decision):
                if self._is_superseded or event.body.verdict != "adopted":
                    continue
                self._contexts.add(event.body.id, event.traceparent)
            if isinstance(event.body, Decision | OperatorCommand | StepClosed):
                self._deliver(event.seq, event.body)

    def _check_superseded(self, run_started: RunStarted, event_message_id: str) -> None:
        """Detect a second learner that starts later under this run's name. From then on, decisions refer to the newer
        learner. This one ignores them, and its training continues."""
        if event_message_id == message_id(run_started, self._secret):
            self._is_announced = True
            return
        if self._is_superseded or not self._is_announced:
            return
        self._is_superseded = True
        log.error(
            "another learner has started run %r (incarnation %d); this one now ignores decisions, and its messages "
            "have no effect. Training continues. Give each run its own name (run=, OVEN_RUN)",
            self._run,
            run_started.incarnation,
        )

    def _count_event(self) -> None:
        self.progress += 1
