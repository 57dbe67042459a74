"""What the learner reads of its run's log: what earlier incarnations left, and what is decided from then on."""

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
    """Reads decisions, operators' commands and closed steps, over one connection after another."""

    def __init__(
        self,
        run: str,
        keyring: Keyring,
        secret: bytes,
        contexts: tracing.Contexts,
        deliver: Callable[[int, LogMessage], object],
    ) -> None:
        """`secret`: what this learner's message ids are made with. `contexts` is given those of the decisions that are
        to be carried out. `deliver` takes what is for the learner, with its sequence."""
        self.progress = 0
        """Events read so far of what earlier incarnations left."""
        self._run, self._keyring, self._secret = run, keyring, secret
        self._contexts, self._deliver = contexts, deliver
        self._on = Subjects(run)
        self._begun = asyncio.Event()
        self._last_read = 0  # a sequence
        self._announced = False  # this learner's RunStarted is in the log
        self._superseded = False  # by a second learner under this run's name

    def begin(self) -> None:
        """Deliver from now on."""
        self._begun.set()

    async def catch_up(self, bus: Bus) -> ResumeState:
        """What the log says of earlier incarnations. Raises BusError when the run has no log, ConfigError when it is
        signed by another learner's key."""
        past = await read_resume_state(bus, self._run, self._keyring, self._note_progress)
        check_signer(bus, self._run, past)
        self._last_read = past.last_seq
        return past

    async def continue_from(self, bus: Bus, seen: int) -> None:
        """Take another reader's place, whose learner is announced, and was given all up to the sequence `seen`."""
        self._last_read, self._announced = seen, True
        head = await bus.head(self._run)
        if head:
            async for event in bus.read(self._run, until=head, subjects=[self._on.run, self._on.operator("*")]):
                self._keyring.verify(event)  # it learns who signs

    async def run(self, bus: Bus) -> None:
        """Decisions come from the log and from nowhere else: a plain subscriber may see one twice, or not at all. Those
        that no one carries out end here: to unpack one would cost the training thread 150 µs."""
        await self._begun.wait()
        on = self._on
        wanted = [on.run, on.decision("*"), on.operator("*"), on.step("*")]
        async for logged in bus.read(self._run, after=self._last_read, subjects=wanted):
            event = self._keyring.verify(logged)
            self._last_read = event.seq
            if isinstance(event.body, RunStarted):
                self._beware(event.body, event.message_id)
            if isinstance(event.body, Malformed):
                log.warning("event %d on %s counts for nothing: %s", event.seq, event.subject, event.body.reason)
            if isinstance(event.body, Decision):
                if self._superseded or event.body.verdict != "adopted":
                    continue
                self._contexts.keep(event.body.id, event.traceparent)
            if isinstance(event.body, Decision | OperatorCommand | StepClosed):
                self._deliver(event.seq, event.body)

    def _beware(self, run: RunStarted, named: str) -> None:
        """Of a second learner under this run's name: the log counts the newest one's words, and what is decided is for
        what that one measures. This one's training continues, by itself. One that began before it counts no more."""
        if named == message_id(run, self._secret):
            self._announced = True
            return
        if self._superseded or not self._announced:
            return
        self._superseded = True
        log.error(
            "another learner has begun run %r (incarnation %d): what this one says no longer counts, and decisions are "
            "no longer carried out here; training continues. Give each run its own name (run=, OVEN_RUN)",
            self._run,
            run.incarnation,
        )

    def _note_progress(self) -> None:
        self.progress += 1
