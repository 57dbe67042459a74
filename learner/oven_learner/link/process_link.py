"""A link to the bus that runs in a child process, so that asyncio never competes with training for the GIL.

A bus client in a thread would take 10 % of a 5 ms step. It needs the interpreter dozens of times per step, and the
training thread waits for it between two kernels. Therefore the training thread only appends to a deque, which is the
cheapest operation. A second thread, the relay, polls the deque once or twice per step and writes the messages to a
pipe. The process at the other end of the pipe (`worker`) is the bus client. The training thread reads the log's
messages directly from its own pipe.

If the process dies, another one replaces it. This process keeps every message that must not be lost, and sends it again
if the log lacks it. Observations in transit are lost and counted.
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

from oven_core.bus.log_client import Entry
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
from oven_learner.link.log_writer import OutageLog
from oven_learner.link.outbox import AT_ONCE, KEPT_BYTES, OVERHEAD_BYTES, UNMADE
from oven_learner.link.pipes import Flag, Inlet, Outlet, packed
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import LAST_S, Parcel, SampleQueue

log = logging.getLogger("oven.learner")

POLL_S = 0.005
"""The relay's pause while no message is due. The training thread never wakes another thread: a wake-up lets the
scheduler run that thread on the trainer's core, which costs milliseconds at the 99th percentile on a busy machine. An
append to a deque costs microseconds."""
SOON_S = 0.0005
"""The relay's pause while a message is due."""
LOOKS = 10
"""Number of short pauses. A message that is later than that has changed its pace, and the pause is POLL_S again."""
EARLY_S = 0.0005
"""Seconds by which the relay polls before a message is due, because steps are not perfectly regular."""
NEWEST_WEIGHT = 0.25
"""Weight of the newest interval in the running mean of intervals."""
AGAIN_S = 0.25
AGAIN_MOST_S = 5.0
"""Initial and maximum pause in seconds before the worker is restarted."""
CLOSING_S = 0.001
KEEPING_S = 5.0
"""After the time for sending is over, the time for the process to disconnect and to write the rest to the disk."""
STATUS_POLL_S = 0.05
"""Seconds between two checks of the process's status and liveness."""


class PollSchedule:
    """Decides when the relay polls for messages: rarely, and when a step is about to end.

    A poll may take the interpreter from the training thread for a moment. A message that waits for a poll delays its
    decision. The schedule has no clock.
    """

    def __init__(self, idle_pause_s: float) -> None:
        """`idle_pause_s`: the pause while nothing is due."""
        self._idle_pause_s = idle_pause_s
        self._last_sent: float | None = None
        self._period_s: float | None = None
        self._looks = 0

    def note_message(self, sent_s: float) -> None:
        """Record that a poll found a message that was sent at this time, in seconds."""
        if self._last_sent is not None and sent_s - self._last_sent > 2 * SOON_S:  # shorter: a receipt of the same step
            interval, period = sent_s - self._last_sent, self._period_s
            self._period_s = interval if period is None else period + NEWEST_WEIGHT * (interval - period)
        self._last_sent, self._looks = sent_s, 0

    def pause_s(self, now_s: float) -> float:
        if self._last_sent is None or self._period_s is None or self._idle_pause_s <= SOON_S:
            return self._idle_pause_s
        due_in = self._last_sent + self._period_s - EARLY_S - now_s
        if due_in > self._idle_pause_s + SOON_S:
            return self._idle_pause_s
        if due_in > 0:
            return due_in
        self._looks += 1
        return SOON_S if self._looks <= LOOKS else self._idle_pause_s


class ProcessLink:
    """A `Link` through a child process.

    The training thread calls the public methods. It has a deque to the relay and a pipe from the process. Everything
    else runs in the relay thread.
    """

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
        """`pin`: the learner's public key, if it is known. `folder`: the run's folder, for messages that the log did
        not take. `machine`: whether observations carry memory and GPU readings."""
        spool_folder = str(folder) if folder is not None else ""
        self._config = WorkerConfig(url, run, credentials, pin, poll_s, secrets.token_bytes(16), spool_folder, machine)
        self._closing_s = self._closed_at = 0.0
        self._count = 0
        self._last_sent_at = 0.0
        self._new: deque[tuple[Make, bool]] = deque()
        self._items = Inlet(-1)
        self._flag = Flag()
        self._last_flag = self._flag.value
        self._next_items: deque[Inlet] = deque()  # of processes that replaced the first
        self._last_item = 0
        self._inbox: deque[LogMessage] = deque()
        self._samples = SampleQueue()
        self._past: ResumeState | None = None
        self._failure: BaseException | None = None
        self._opened, self._begun, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._relay = threading.Thread(target=self._run, name="oven-relay", daemon=True)
        # Only the relay uses these:
        self._process: subprocess.Popen[bytes] | None = None
        self._status = Status()
        self._n = 0
        self._observed = 0
        self._lost = 0
        self._unsent: deque[tuple[int, bytes, bool]] = deque()  # waiting for room in the pipe: n, frame, droppable
        self._unsent_bytes = 0
        self._lasting: dict[int, Make] = {}  # messages that must not be lost, by n
        self._ready = False  # the process has sent its first message
        self._sent_begin = self._sent_close = False
        self._outages = OutageLog()
        self._partial_line = b""
        self._last_lines: deque[str] = deque(maxlen=20)

    @property
    def dropped(self) -> int:
        """Observations that the log will never have, as far as this process knows."""
        return self._lost + self._status.dropped

    @property
    def unsent(self) -> int:
        """Messages that the log has not confirmed, as far as this process knows."""
        return self._count - self._status.received + self._status.waiting

    @property
    def pid(self) -> int | None:
        """The id of the child process."""
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
        self._count += 1
        self._new.append((make, droppable))
        self._last_sent_at = time.monotonic()

    def show(self, make: Parcel) -> None:
        self._samples.put(make)

    def receive(self) -> LogMessage | None:
        if not self._inbox and self._flag.value != self._last_flag:
            self._last_flag = self._flag.value
            while self._next_items:
                self._items.close()
                self._items = self._next_items.popleft()
            for item in self._items.take():
                self._last_item = item.seq
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
        if not self._status.is_last and self._config.folder and self._past is not None:
            self._spool_rest()
        tracing.flush()
        return self._status.is_last and not self.unsent

    def _spool_rest(self) -> None:
        """Write the messages that the log lacks to the disk, because the process could not. Its observations are
        lost."""
        config, status = self._config, self._status
        confirmed = status.received - status.waiting - status.dropped
        makes = {n: make for n, make in self._lasting.items() if n > confirmed}
        makes |= {n: unpacked_observation(data) for n, data, droppable in self._unsent if droppable}
        entries = []
        for n in sorted(makes):
            message = makes[n]()
            if isinstance(message, RunEnded):
                message = message.model_copy(update={"dropped_observations": self.dropped})
            subject = learner_subject(config.run, message)
            entries.append(Entry(subject, message.wire(), message_id(message, config.secret)))
        with contextlib.suppress(OvenError):  # there was no spool when the run was opened
            spool.keep(spool.take(config.folder, config.run), entries, config.credentials)

    def _run(self) -> None:
        """The relay thread: run one process after another until the learner closes the link."""
        pause = AGAIN_S
        while True:
            started = time.monotonic()
            try:
                self._serve(self._config)
            except BaseException as error:
                if self._past is None:
                    self._failure = error
                else:
                    self._outages.record(error, len(self._unsent))
            if self._past is None and self._failure is None:
                output = "\n".join(self._last_lines)
                self._failure = ProcessError(f"the process that speaks to the bus ended at once:\n{output}")
            self._opened.set()
            if self._failure is not None or self._closing.is_set():
                return
            pause = AGAIN_S if time.monotonic() - started > AGAIN_MOST_S else min(2 * pause, AGAIN_MOST_S)
            if self._closing.wait(pause):
                return
            self._config = replace(self._config, replaces=True, last_item=self._last_item)

    def _serve(self, config: WorkerConfig) -> None:
        """Run one process until it ends. Raises ProcessError if it cannot be started, or ends unexpectedly."""
        worker_in, our_out = os.pipe()
        our_in, worker_out = os.pipe()
        items_in, items_out = os.pipe()
        outlet, inlet, items = Outlet(our_out), Inlet(our_in), Inlet(items_in)
        try:
            self._process = process = _start_worker(worker_in, worker_out, items_out, self._flag.fd)
        except OSError as error:
            for end in (outlet, inlet, items):
                end.close()
            raise ProcessError(f"no process can be started to speak to the bus: {reason(error)}") from error
        finally:
            for fd in (worker_in, worker_out, items_out):
                os.close(fd)
        assert process.stderr is not None
        self._next_items.append(items)
        self._ready = self._sent_begin = self._sent_close = False
        try:
            outlet.put(packed(config))
            os.set_blocking(process.stderr.fileno(), False)
            self._relay_messages(outlet, inlet, process.stderr.fileno())
        finally:
            self._read_status(inlet)
            outlet.close()
            inlet.close()
            code = process.wait()
            self._copy_log(process.stderr.fileno(), last=True)
            process.stderr.close()
        if self._past is not None and not self._closing.is_set() and (self._ready or code):
            raise ProcessError(f"the process that speaks to the bus ended (exit code {code})")

    def _relay_messages(self, outlet: Outlet, inlet: Inlet, stderr: int) -> None:
        """Poll for messages of the training thread in the rhythm of its steps, and now and then for the status."""
        schedule, status_read_at = PollSchedule(self._config.poll_s), 0.0
        while True:
            time.sleep(CLOSING_S if self._closing.is_set() else schedule.pause_s(time.monotonic()))
            if self._collect():
                schedule.note_message(self._last_sent_at)
            self._samples.wake()
            self._send(outlet)
            if time.monotonic() >= status_read_at + STATUS_POLL_S or self._closing.is_set() or not self._ready:
                status_read_at = time.monotonic()
                self._read_status(inlet)
                self._copy_log(stderr)
                if inlet.ended:
                    return

    def _collect(self) -> bool:
        """Pack new messages, a few at a time, because the training thread may need the interpreter meanwhile. Return
        whether there were any."""
        packed_any = False
        while self._new and (not packed_any or self._closing.is_set() or len(self._new) > UNMADE):
            for _ in range(min(AT_ONCE, len(self._new))):
                self._pack(*self._new.popleft())
            packed_any = True
        return packed_any

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
        while self._unsent_bytes > KEPT_BYTES:  # drop the oldest observation; the others must not be lost
            index = next((index for index, (_, _, may_go) in enumerate(self._unsent) if may_go), None)
            if index is None:
                return
            self._unsent_bytes -= len(self._unsent[index][1]) + OVERHEAD_BYTES
            del self._unsent[index]
            self._lost += 1

    def _send(self, outlet: Outlet) -> None:
        if not self._ready:
            return
        if self._begun.is_set() and not self._sent_begin:
            self._sent_begin = outlet.put(packed(BEGIN))
        while self._unsent:
            n, data, droppable = self._unsent[0]
            if not outlet.put(data if droppable else packed(Frame(n, self._lost, self._lasting[n]))):
                break
            self._unsent.popleft()
            self._unsent_bytes -= len(data) + OVERHEAD_BYTES
        else:
            self._samples.send(outlet)
        all_sent = not self._new and not self._unsent and not self._waits_for_sample()
        if self._closing.is_set() and all_sent and not self._sent_close:
            self._sent_close = outlet.put(packed(Closing(self._closing_s)))
        outlet.flush()

    def _waits_for_sample(self) -> bool:
        """Whether the end waits for a sample of completions that is still being made."""
        return self._samples.busy and time.monotonic() < self._closed_at + LAST_S

    def _read_status(self, inlet: Inlet) -> None:
        for message in inlet.take():
            match message:
                case Status():
                    self._status = message
                    if message.sent > self._config.sent:
                        self._config = replace(self._config, sent=message.sent, logged=message.logged)
                case Resumed():
                    self._repeat(message)
                    self._ready = True
                    self._outages.recovered(self.dropped)
                case ResumeState():
                    self._past, self._ready = message, True
                    self._last_item = message.last_seq
                    self._config = replace(self._config, sent=message.last_seq)
                    self._opened.set()
                case BaseException() if self._past is None:
                    self._failure = message
                case BaseException():
                    self._outages.record(message, len(self._unsent))

    def _repeat(self, resumed: Resumed) -> None:
        """Queue the lasting messages that the log lacks, in order with the observations that wait here. All other
        observations that the log lacks are lost."""
        waiting = {n: (n, data, True) for n, data, droppable in self._unsent if droppable}
        again = {
            n: (n, packed(Frame(n, self._lost, make)), False) for n, make in self._lasting.items() if n > resumed.n
        }
        self._unsent = deque(entry for _, entry in sorted((waiting | again).items()))
        self._unsent_bytes = sum(len(data) + OVERHEAD_BYTES for _, data, _ in self._unsent)
        self._lost = self._observed - len(waiting) - resumed.logged
        self._status = Status(received=resumed.n, sent=self._config.sent, logged=resumed.logged)

    def _copy_log(self, stderr: int, last: bool = False) -> None:
        """Copy the process's log into the learner's log."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(stderr, 65536):
                self._partial_line += data
        *lines, self._partial_line = (self._partial_line + b"\n" * (last and bool(self._partial_line))).split(b"\n")
        for line in (line.decode(errors="replace") for line in lines):
            self._last_lines.append(line)
            name, _, text = line.partition(" ")
            level = logging.getLevelNamesMapping().get(name)
            log.log(level or logging.ERROR, "%s", text if level else line)


def _start_worker(*fds: int) -> subprocess.Popen[bytes]:
    """Start the process with the pipe to read, the two pipes to write, and the flag to raise. It gets its own process
    group, so that Ctrl-C reaches only the learner."""
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "oven_learner.link.worker", *map(str, fds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=fds,
        process_group=0,
    )
