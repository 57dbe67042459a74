"""Bus link that runs in a child process, so that asyncio never contends with training for the GIL.

A bus client in a thread takes a tenth of a step of 5 ms: its Python wants the interpreter dozens of times per step, and
the training thread waits for it between two kernels. So the training thread appends to a deque, as nothing is cheaper;
a thread here, the relay, carries that on to a pipe, at a look or two a step; and the process at its other end
(`worker`) is the bus client. What comes from the log the training thread reads off its own pipe.

That process may die: another takes its place. What must never be lost is kept here and said again, as far as the log
lacks it. Observations that were under way then are lost and counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from oven_core.bus.log import Entry
from oven_core.errors import OvenError, ProcessError, reason
from oven_core.protocol.messages import LogMessage, RunEnded
from oven_core.protocol.subjects import learner_subject
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_learner.link import spool
from oven_learner.link.frames import (
    BEGIN,
    GRACE_S,
    Closing,
    Frame,
    Resumed,
    Status,
    WorkerConfig,
    packed_observation,
    unpacked_observation,
)
from oven_learner.link.link_interface import Make, PendingObservation, message_id
from oven_learner.link.outage_log import OutageLog
from oven_learner.link.outbox import AT_ONCE, KEPT_BYTES, OVERHEAD_BYTES, UNMADE
from oven_learner.link.pipes import Flag, Inlet, Outlet, packed
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import LAST_S, Parcel, SampleQueue

SOON_S = 0.0005
"""Between two looks while a message is due."""
LOOKS = 10
"""So many of those; one that is later than that has changed its pace, and is waited for at leisure."""
EARLY_S = 0.0005
"""Before it is due: steps are not that regular."""
FORGET = 0.25
"""Weight of the newest interval in the mean of them."""


class PollSchedule:
    """A look may cost the training thread the interpreter for a moment; a message that waits for a look costs its
    decision as much. So few looks, just when a message is due. No clock of its own."""

    def __init__(self, leisure_s: float) -> None:
        """`leisure_s`: between two looks while nothing is due."""
        self._leisure_s = leisure_s
        self._last: float | None = None
        self._period_s: float | None = None
        self._looks = 0

    def found(self, said_s: float) -> None:
        """A look found something, which was said at a time in seconds."""
        if self._last is not None and said_s - self._last > 2 * SOON_S:  # less is what came with it: a receipt
            interval = said_s - self._last
            known = self._period_s
            self._period_s = interval if known is None else known + FORGET * (interval - known)
        self._last, self._looks = said_s, 0

    def pause_s(self, now_s: float) -> float:
        """Until the next look."""
        if self._last is None or self._period_s is None or self._leisure_s <= SOON_S:
            return self._leisure_s
        due = self._last + self._period_s - EARLY_S - now_s
        if due > self._leisure_s + SOON_S:
            return self._leisure_s
        if due > 0:
            return due
        self._looks += 1
        return SOON_S if self._looks <= LOOKS else self._leisure_s


log = logging.getLogger("oven.learner")

POLL_S = 0.005
"""Between two looks for what the training thread has said, while nothing is due. Nothing on the training thread wakes
another thread: a wake-up lets the scheduler run the woken thread on the trainer's core, milliseconds at the 99th
percentile on a busy machine, where an append to a deque is microseconds."""
AGAIN_S = 0.25
AGAIN_MOST_S = 5.0
CLOSING_S = 0.001
KEEPING_S = 5.0
"""For the process to let go of the server, write what is left to the disk and say so, once the time for sending is
over."""
HEAR_S = 0.05
"""Between two looks for how far the process is, and whether it still lives."""


class ProcessLink:
    """A `Link`. The training thread calls its methods, and has a deque to the relay and a pipe from the process; all
    the rest is the relay's."""

    def __init__(
        self,
        url: str,
        run: str,
        credentials: Credentials | None,
        *,
        poll_s: float = POLL_S,
        pin: str | None = None,
        folder: Path | None = None,
        machine: bool = False,
    ) -> None:
        """`pin`: the learner's public key, if known. `folder`: the run's, for what the log does not take in the end.
        `machine`: whether observations carry the machine's readings."""
        kept_in = str(folder) if folder is not None else ""
        self._config = WorkerConfig(url, run, credentials, pin, poll_s, secrets.token_bytes(16), kept_in, machine)
        self._closing_s = self._closed_at = 0.0
        self._given = 0
        self._said_at = 0.0
        self._new: deque[tuple[Make, bool]] = deque()
        self._items = Inlet(-1)
        self._flag = Flag()
        self._flagged = self._flag.value
        self._next_items: deque[Inlet] = deque()  # of the process that took the other's place
        self._seen = 0
        self._inbox: deque[LogMessage] = deque()
        self._samples = SampleQueue()
        self._past: ResumeState | None = None
        self._failure: BaseException | None = None
        self._opened, self._begun, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._relay = threading.Thread(target=self._run, name="oven-relay", daemon=True)
        # The relay's own:
        self._process: subprocess.Popen[bytes] | None = None
        self._status = Status()
        self._n = 0
        self._observed = 0
        self._lost = 0
        self._unsent: deque[tuple[int, bytes, bool]] = deque()  # without room in the pipe: n, frame, droppable
        self._unsent_bytes = 0
        self._lasting: dict[int, Make] = {}
        self._ready = False  # the process has said its first word
        self._told_begin = self._told_close = False
        self._outages = OutageLog()
        self._words = b""
        self._last_words: deque[str] = deque(maxlen=20)

    @property
    def dropped(self) -> int:
        """As far as it is known here."""
        return self._lost + self._status.dropped

    @property
    def unsent(self) -> int:
        """Messages that the log has not confirmed, as far as it is known here."""
        return self._given - self._status.taken + self._status.waiting

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return self._process.pid if self._process is not None else None

    def open(self) -> ResumeState:
        self._relay.start()
        self._opened.wait()
        if self._failure is not None:
            self._relay.join(GRACE_S)
            raise self._failure
        assert self._past is not None
        return self._past

    def begin(self) -> None:
        self._begun.set()

    def send(self, make: Make, *, droppable: bool = False) -> None:
        self._given += 1
        self._new.append((make, droppable))
        self._said_at = time.monotonic()

    def show(self, make: Parcel) -> None:
        self._samples.put(make)

    def receive(self) -> LogMessage | None:
        if not self._inbox and self._flag.value != self._flagged:
            self._flagged = self._flag.value
            while self._next_items:
                self._items.close()
                self._items = self._next_items.popleft()
            for item in self._items.take():
                self._seen = item.seq
                self._inbox.append(item.body)
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        self._closing_s, self._closed_at = timeout_s, time.monotonic()
        self._closing.set()
        self._relay.join(timeout_s + KEEPING_S)
        if self._relay.is_alive() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._relay.join(GRACE_S)
        self._samples.close()
        for inlet in (self._items, *self._next_items):
            inlet.close()
        self._flag.close()
        if not self._status.over and self._config.folder and self._past is not None:
            self._keep()
        tracing.flush()
        return self._status.over and not self.unsent

    def _keep(self) -> None:
        """The process could not: what is known here of what the log lacks. Observations that it had are lost."""
        config, confirmed = self._config, self._status.taken - self._status.waiting - self._status.dropped
        makes = {n: make for n, make in self._lasting.items() if n > confirmed}
        makes |= {n: unpacked_observation(data) for n, data, droppable in self._unsent if droppable}
        entries = []
        for n in sorted(makes):
            message = makes[n]()
            if isinstance(message, RunEnded):
                message = message.model_copy(update={"dropped_observations": self.dropped})
            where = learner_subject(config.run, message)
            entries.append(Entry(where, message.wire(), message_id(message, config.secret)))
        with contextlib.suppress(OvenError):  # there was none when the run was opened
            spool.keep(spool.taken(config.folder, config.run), entries, config.credentials)

    def _run(self) -> None:
        """The relay's thread: one process after the other, until the learner closes it."""
        pause = AGAIN_S
        while True:
            began = time.monotonic()
            try:
                self._serve(self._config)
            except BaseException as error:
                if self._past is None:
                    self._failure = error
                else:
                    self._outages.record(error, len(self._unsent))
            if self._past is None and self._failure is None:
                told = "\n".join(self._last_words)
                self._failure = ProcessError(f"the process that speaks to the bus ended at once:\n{told}")
            self._opened.set()
            if self._failure is not None or self._closing.is_set():
                return
            pause = AGAIN_S if time.monotonic() - began > AGAIN_MOST_S else min(2 * pause, AGAIN_MOST_S)
            if self._closing.wait(pause):
                return
            self._config = replace(self._config, replaces=True, seen=self._seen)

    def _serve(self, config: WorkerConfig) -> None:
        """Until the process ends. Raises ProcessError when it cannot be started, or ends unasked."""
        down, out = os.pipe()
        back, up = os.pipe()
        heard, told = os.pipe()
        outlet, inlet, items = Outlet(out), Inlet(back), Inlet(heard)
        try:
            self._process = process = _started(down, up, told, self._flag.fd)
        except OSError as error:
            for end in (outlet, inlet, items):
                end.close()
            raise ProcessError(f"no process can be started to speak to the bus: {reason(error)}") from error
        finally:
            for fd in (down, up, told):
                os.close(fd)
        assert process.stderr is not None
        self._next_items.append(items)
        self._ready = self._told_begin = self._told_close = False
        try:
            outlet.put(packed(config))
            os.set_blocking(process.stderr.fileno(), False)
            self._carry(outlet, inlet, process.stderr.fileno())
        finally:
            self._hear(inlet)
            outlet.close()
            inlet.close()
            code = process.wait()
            self._overhear(process.stderr.fileno(), last=True)
            process.stderr.close()
        if self._past is not None and not self._closing.is_set() and (self._ready or code):
            raise ProcessError(f"the process that speaks to the bus ended (exit code {code})")

    def _carry(self, outlet: Outlet, inlet: Inlet, words: int) -> None:
        """Look for what the training thread says by the rhythm of its steps, and now and then for what the process
        does."""
        schedule, heard = PollSchedule(self._config.poll_s), 0.0
        while True:
            time.sleep(CLOSING_S if self._closing.is_set() else schedule.pause_s(time.monotonic()))
            if self._collect():
                schedule.found(self._said_at)
            self._samples.wake()
            self._send(outlet)
            if time.monotonic() >= heard + HEAR_S or self._closing.is_set() or not self._ready:
                heard = time.monotonic()
                self._hear(inlet)
                self._overhear(words)
                if inlet.ended:
                    return

    def _collect(self) -> bool:
        """Make frames of what the training thread has said, a few at a time: meanwhile it may want the interpreter."""
        made = False
        while self._new and (not made or self._closing.is_set() or len(self._new) > UNMADE):
            for _ in range(min(AT_ONCE, len(self._new))):
                self._pack(*self._new.popleft())
            made = True
        return made

    def _pack(self, make: Make, droppable: bool) -> None:
        self._n += 1
        try:
            if isinstance(make, PendingObservation):
                data = packed_observation(self._n, self._lost, make)
            else:
                data = packed(Frame(self._n, self._lost, make))
        except Exception as error:
            log.error("a message could not be made and is left out: %s", reason(error))
            return
        if droppable:
            self._observed += 1
        else:
            self._lasting[self._n] = make
        self._unsent.append((self._n, data, droppable))
        self._unsent_bytes += len(data) + OVERHEAD_BYTES
        while self._unsent_bytes > KEPT_BYTES:  # the oldest observation goes; what must never be lost stays
            at = next((at for at, (_, _, goes) in enumerate(self._unsent) if goes), None)
            if at is None:
                return
            self._unsent_bytes -= len(self._unsent[at][1]) + OVERHEAD_BYTES
            del self._unsent[at]
            self._lost += 1

    def _send(self, outlet: Outlet) -> None:
        if not self._ready:
            return
        if self._begun.is_set() and not self._told_begin:
            self._told_begin = outlet.put(packed(BEGIN))
        while self._unsent:
            n, data, droppable = self._unsent[0]
            if not outlet.put(data if droppable else packed(Frame(n, self._lost, self._lasting[n]))):
                break
            self._unsent.popleft()
            self._unsent_bytes -= len(data) + OVERHEAD_BYTES
        else:
            self._samples.send(outlet)
        last = not self._new and not self._unsent and not self._samples_wait()
        if self._closing.is_set() and last and not self._told_close:
            self._told_close = outlet.put(packed(Closing(self._closing_s)))
        outlet.flush()

    def _samples_wait(self) -> bool:
        """Whether the end is put off for a sample that is not on its way yet."""
        return self._samples.busy and time.monotonic() < self._closed_at + LAST_S

    def _hear(self, inlet: Inlet) -> None:
        for said in inlet.take():
            match said:
                case Status():
                    self._status = said
                    if said.sent > self._config.sent:
                        self._config = replace(self._config, sent=said.sent, logged=said.logged)
                case Resumed():
                    self._repeat(said)
                    self._ready = True
                    self._outages.recovered(self.dropped)
                case ResumeState():
                    self._past, self._ready = said, True
                    self._seen = said.last_seq
                    self._config = replace(self._config, sent=said.last_seq)
                    self._opened.set()
                case BaseException() if self._past is None:
                    self._failure = said
                case BaseException():
                    self._outages.record(said, len(self._unsent))

    def _repeat(self, known: Resumed) -> None:
        """What the log lacks of what must never be lost, in its order with the observations that wait here. All others
        that the log lacks are lost."""
        waiting = {n: (n, data, True) for n, data, droppable in self._unsent if droppable}
        again = {n: (n, packed(Frame(n, self._lost, make)), False) for n, make in self._lasting.items() if n > known.n}
        self._unsent = deque(value for _, value in sorted((waiting | again).items()))
        self._unsent_bytes = sum(len(data) + OVERHEAD_BYTES for _, data, _ in self._unsent)
        self._lost = self._observed - len(waiting) - known.logged
        self._status = Status(taken=known.n, sent=self._config.sent, logged=known.logged)

    def _overhear(self, fd: int, last: bool = False) -> None:
        """What is in the process's log is in this one's too."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 65536):
                self._words += data
        *lines, self._words = (self._words + b"\n" * (last and bool(self._words))).split(b"\n")
        for line in (line.decode(errors="replace") for line in lines):
            self._last_words.append(line)
            name, _, text = line.partition(" ")
            level = logging.getLevelNamesMapping().get(name)
            log.log(level or logging.ERROR, "%s", text if level else line)


def _started(*ends: int) -> subprocess.Popen[bytes]:
    """It reads the first pipe, writes the two others, and raises the flag. In its own group, so that Ctrl-C is the
    learner's to answer."""
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "oven_learner.link.worker", *map(str, ends)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path}, pass_fds=ends, process_group=0,
    )  # fmt: skip
