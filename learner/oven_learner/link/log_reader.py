"""Reads the run's log for the learner: the state of earlier incarnations, and then new decisions."""

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
    """Reads decisions, operators' commands and closed steps, across successive connections."""

    def __init__(
        self,
        run: str,
        keyring: Keyring,
        secret: bytes,
        contexts: tracing.Contexts,
        deliver: Callable[[int, LogMessage], object],
    ) -> None:
        """`secret` makes this learner's message ids. `contexts` gets the trace contexts of adopted decisions. `deliver`
        gets each event for the learner, with its sequence."""
        self.progress = 0
        """Events of earlier incarnations that were read so far."""
        self._run, self._keyring, self._secret = run, keyring, secret
        self._contexts, self._deliver = contexts, deliver
        self._subjects = Subjects(run)
        self._begun = asyncio.Event()
        self._last_read = 0  # a sequence
        self._announced = False  # this learner's RunStarted is in the log
        self._superseded = False  # by a second learner under this run's name

    def begin(self) -> None:
        self._begun.set()

    async def catch_up(self, bus: Bus) -> ResumeState:
        """Return what earlier incarnations left. Raises BusError if the run has no log, and ConfigError if it is signed
        with another learner's key."""
        past = await read_resume_state(bus, self._run, self._keyring, self._note_progress)
        check_signer(bus, self._run, past)
        self._last_read = past.last_seq
        return past

    async def continue_from(self, bus: Bus, last_item: int) -> None:
        """Replace another reader, whose learner is announced and has received everything up to this sequence."""
        self._last_read, self._announced = last_item, True
        head = await bus.head(self._run)
        if head:
            subjects = [self._subjects.run, self._subjects.operator("*")]
            async for event in bus.read(self._run, until=head, subjects=subjects):
                self._keyring.verify(event)  # learns the signers' keys

    async def run(self, bus: Bus) -> None:
        """Deliver events. Decisions are read from the log only: a plain subscriber may miss one or see it twice.

        Decisions that are not adopted end here: unpacking one would cost the training thread 150 µs.
        """
        await self._begun.wait()
        subjects = self._subjects
        patterns = [subjects.run, subjects.decision("*"), subjects.operator("*"), subjects.step("*")]
        async for logged in bus.read(self._run, after=self._last_read, subjects=patterns):
            event = self._keyring.verify(logged)
            self._last_read = event.seq
            if isinstance(event.body, RunStarted):
                self._check_superseded(event.body, event.message_id)
            if isinstance(event.body, Malformed):
                log.warning("event %d on %s is ignored: %s", event.seq, event.subject, event.body.reason)
            if isinstance(event.body, Decision):
                if self._superseded or event.body.verdict != "adopted":
                    continue
                self._contexts.add(event.body.id, event.traceparent)
            if isinstance(event.body, Decision | OperatorCommand | StepClosed):
                self._deliver(event.seq, event.body)

    def _check_superseded(self, run: RunStarted, event_message_id: str) -> None:
        """Notice a second learner under this run's name. The log then counts the newest learner's messages, so its
        decisions are not for this one, whose training continues alone. A learner that began earlier does not count."""
        if event_message_id == message_id(run, self._secret):
            self._announced = True
            return
        if self._superseded or not self._announced:
            return
        self._superseded = True
        log.error(
            "another learner has begun run %r (incarnation %d): messages of this one no longer count, and decisions "
            "are no longer carried out here; training continues. Give each run its own name (run=, OVEN_RUN)",
            self._run,
            run.incarnation,
        )

    def _note_progress(self) -> None:
        self.progress += 1
