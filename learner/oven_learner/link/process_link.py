"""The learner's link in its own process, and the little that is left beside the training thread.

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
from dataclasses import dataclass, replace
from pathlib import Path

from oven_controller.bus.connection import Entry
from oven_controller.errors import OvenError, ProcessError, reason
from oven_controller.protocol.messages import LogMessage, RunEnded
from oven_controller.protocol.names import Subjects
from oven_controller.security.credentials import Credentials
from oven_controller.telemetry import tracing
from oven_learner.link import pipes, spool
from oven_learner.link.bus_link import POLL_S, Reading, identity, subject
from oven_learner.link.outage_log import Trouble
from oven_learner.link.outbox import AT_ONCE, KEPT_BYTES, OVERHEAD_BYTES, UNMADE, Make
from oven_learner.link.pipes import Flag, Inlet, Outlet, packed, packed_atoms
from oven_learner.link.poll_schedule import Rhythm
from oven_learner.link.resume_state import Past

log = logging.getLogger("oven.learner")

AGAIN_S = 0.25
AGAIN_MOST_S = 5.0
GRACE_S = 1.0
"""For the process to end by itself, once it was told to or the learner is gone."""
CLOSING_S = 0.001
KEEPING_S = 5.0
"""For the process to let go of the server and write what is left to the disk, once the time for sending is over."""
HEAR_S = 0.05
"""Between two looks for how far the process is, and whether it still lives."""


@dataclass(frozen=True)
class Mission:
    """What the process has to know. `said`, `logged` and `seen` are for one that takes another's place."""

    url: str
    run: str
    credentials: Credentials | None
    pin: str | None
    poll_s: float
    secret: bytes
    folder: str = ""
    """The run's, where what the log did not take is kept; empty: nowhere."""
    replaces: bool = False
    said: int = 0
    """A sequence of the log: of what this learner said before it, all that matters is known."""
    logged: int = 0
    """This learner's observations up to there."""
    seen: int = 0
    """The sequence of the last event that the learner was given."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """The learner's n-th message on its way, if it is not a Reading; those go as atoms. `lost`: observations that never
    got so far."""

    n: int
    lost: int
    make: Make


@dataclass(frozen=True, slots=True)
class Status:
    """How far the process is."""

    taken: int = 0
    """The last message that it took over."""
    waiting: int = 0
    """Messages that it has and the log does not."""
    dropped: int = 0
    said: int = 0
    """The sequence of this learner's last message in the log."""
    logged: int = 0
    """This learner's observations up to there."""
    over: bool = False
    """Its last word."""
    kept: int = 0
    """Of those that wait: on the disk, in the run's spool."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The learner's last word: send what is left within so many seconds, and keep the rest."""

    within_s: float


@dataclass(frozen=True, slots=True)
class News:
    """For the learner, from the log."""

    seq: int
    body: LogMessage


@dataclass(frozen=True, slots=True)
class Known:
    """The first word of a process that takes another's place: the log has the learner's messages up to `n`, with so
    many observations."""

    n: int
    logged: int


class ApartLink:
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
    ) -> None:
        """`pin`: the learner's public key, if known. `folder`: the run's, for what the log does not take in the end."""
        kept_in = str(folder) if folder is not None else ""
        self._mission = Mission(url, run, credentials, pin, poll_s, secrets.token_bytes(16), kept_in)
        self._closing_s = 0.0
        self._given = 0
        self._said_at = 0.0
        self._new: deque[tuple[Make, bool]] = deque()
        self._news = Inlet(-1)
        self._flag = Flag()
        self._flagged = self._flag.value
        self._next_news: deque[Inlet] = deque()  # of the process that took the other's place
        self._seen = 0
        self._inbox: deque[LogMessage] = deque()
        self._past: Past | None = None
        self._failure: BaseException | None = None
        self._opened, self._begun, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._relay = threading.Thread(target=self._run, name="oven-relay", daemon=True)
        # The relay's own:
        self._process: subprocess.Popen[bytes] | None = None
        self._status = Status()
        self._n = 0
        self._observed = 0
        self._lost = 0
        self._unsent: deque[tuple[int, bytes, bool]] = deque()  # without room in the pipe: n, parcel, droppable
        self._unsent_bytes = 0
        self._lasting: dict[int, Make] = {}
        self._ready = False  # the process has said its first word
        self._told_begin = self._told_close = False
        self._trouble = Trouble()
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

    def open(self) -> Past:
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

    def receive(self) -> LogMessage | None:
        if not self._inbox and self._flag.value != self._flagged:
            self._flagged = self._flag.value
            while self._next_news:
                self._news.close()
                self._news = self._next_news.popleft()
            for news in self._news.take():
                self._seen = news.seq
                self._inbox.append(news.body)
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        self._closing_s = timeout_s
        self._closing.set()
        self._relay.join(timeout_s + (KEEPING_S if self._mission.folder else 0.0))
        if self._relay.is_alive() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._relay.join(GRACE_S)
        for news in (self._news, *self._next_news):
            news.close()
        self._flag.close()
        if not self._status.over and self._mission.folder and self._past is not None:
            self._keep()
        tracing.flush()
        return self._status.over and not self.unsent

    def _keep(self) -> None:
        """The process could not: what is known here of what the log lacks. Observations that it had are lost."""
        mission, confirmed = self._mission, self._status.taken - self._status.waiting - self._status.dropped
        makes = {n: make for n, make in self._lasting.items() if n > confirmed}
        makes |= {n: unpacked(data) for n, data, droppable in self._unsent if droppable}
        letters, on = [], Subjects(mission.run)
        for n in sorted(makes):
            message = makes[n]()
            if isinstance(message, RunEnded):
                message = message.model_copy(update={"dropped_observations": self.dropped})
            letters.append(Entry(subject(on, message), message.wire(), identity(message, mission.secret)))
        with contextlib.suppress(OvenError):  # there was none when the run was opened
            spool.keep(spool.taken(mission.folder, mission.run), letters, mission.credentials)

    def _run(self) -> None:
        """The relay's thread: one process after the other, until the learner closes it."""
        pause = AGAIN_S
        while True:
            began = time.monotonic()
            try:
                self._serve(self._mission)
            except BaseException as error:
                if self._past is None:
                    self._failure = error
                else:
                    self._trouble.note(error, len(self._unsent))
            if self._past is None and self._failure is None:
                told = "\n".join(self._last_words)
                self._failure = ProcessError(f"the process that speaks to the bus ended at once:\n{told}")
            self._opened.set()
            if self._failure is not None or self._closing.is_set():
                return
            pause = AGAIN_S if time.monotonic() - began > AGAIN_MOST_S else min(2 * pause, AGAIN_MOST_S)
            if self._closing.wait(pause):
                return
            self._mission = replace(self._mission, replaces=True, seen=self._seen)

    def _serve(self, mission: Mission) -> None:
        """Until the process ends. Raises ProcessError when it cannot be started, or ends unasked."""
        down, out = os.pipe()
        back, up = os.pipe()
        heard, told = os.pipe()
        outlet, inlet, news = Outlet(out), Inlet(back), Inlet(heard)
        try:
            self._process = process = _started(down, up, told, self._flag.fd)
        except OSError as error:
            for end in (outlet, inlet, news):
                end.close()
            raise ProcessError(f"no process can be started to speak to the bus: {reason(error)}") from error
        finally:
            for fd in (down, up, told):
                os.close(fd)
        assert process.stderr is not None
        self._next_news.append(news)
        self._ready = self._told_begin = self._told_close = False
        try:
            outlet.put(packed(mission))
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
        rhythm, heard = Rhythm(self._mission.poll_s), 0.0
        while True:
            time.sleep(CLOSING_S if self._closing.is_set() else rhythm.pause_s(time.monotonic()))
            if self._collect():
                rhythm.found(self._said_at)
            self._send(outlet)
            if time.monotonic() >= heard + HEAR_S or self._closing.is_set() or not self._ready:
                heard = time.monotonic()
                self._hear(inlet)
                self._overhear(words)
                if inlet.ended:
                    return

    def _collect(self) -> bool:
        """Make parcels of what the training thread has said, a few at a time: meanwhile it may want the interpreter."""
        made = False
        while self._new and (not made or self._closing.is_set() or len(self._new) > UNMADE):
            for _ in range(min(AT_ONCE, len(self._new))):
                self._pack(*self._new.popleft())
            made = True
        return made

    def _pack(self, make: Make, droppable: bool) -> None:
        self._n += 1
        try:
            if isinstance(make, Reading):
                data = _atoms(self._n, self._lost, make)
            else:
                data = packed(Parcel(self._n, self._lost, make))
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
            self._told_begin = outlet.put(packed("begin"))
        while self._unsent:
            n, data, droppable = self._unsent[0]
            if not outlet.put(data if droppable else packed(Parcel(n, self._lost, self._lasting[n]))):
                break
            self._unsent.popleft()
            self._unsent_bytes -= len(data) + OVERHEAD_BYTES
        if self._closing.is_set() and not self._new and not self._unsent and not self._told_close:
            self._told_close = outlet.put(packed(Closing(self._closing_s)))
        outlet.flush()

    def _hear(self, inlet: Inlet) -> None:
        for said in inlet.take():
            match said:
                case Status():
                    self._status = said
                    if said.said > self._mission.said:
                        self._mission = replace(self._mission, said=said.said, logged=said.logged)
                case Known():
                    self._say_again(said)
                    self._ready = True
                    self._trouble.over(self.dropped)
                case Past():
                    self._past, self._ready = said, True
                    self._seen = said.last_seq
                    self._mission = replace(self._mission, said=said.last_seq)
                    self._opened.set()
                case BaseException() if self._past is None:
                    self._failure = said
                case BaseException():
                    self._trouble.note(said, len(self._unsent))

    def _say_again(self, known: Known) -> None:
        """What the log lacks of what must never be lost, in its order with the observations that wait here. All others
        that the log lacks are lost."""
        waiting = {n: (n, data, True) for n, data, droppable in self._unsent if droppable}
        again = {n: (n, packed(Parcel(n, self._lost, make)), False) for n, make in self._lasting.items() if n > known.n}
        self._unsent = deque(value for _, value in sorted((waiting | again).items()))
        self._unsent_bytes = sum(len(data) + OVERHEAD_BYTES for _, data, _ in self._unsent)
        self._lost = self._observed - len(waiting) - known.logged
        self._status = Status(taken=known.n, said=self._mission.said, logged=known.logged)

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


def unpacked(data: bytes) -> Make:
    """The observation that `_atoms` has packed."""
    _n, _lost, *atoms = pipes.unpacked(data)
    return Reading(*atoms)


def _atoms(n: int, lost: int, reading: Reading) -> bytes:
    """Raises ValueError or TypeError for a metric that is not a number."""
    reading.metrics = {name: float(value) for name, value in reading.metrics.items()}  # numpy's are none to marshal
    return packed_atoms((n, lost, *reading.atoms))
