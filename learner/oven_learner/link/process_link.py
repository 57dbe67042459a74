"""A link to the bus that runs in a child process, so that asyncio does not compete with training for the GIL.

A bus client in a thread would need the interpreter dozens of times per step, while the training thread waits. That
would take 10 % of a 5 ms step. Therefore the training thread only appends to a deque. A second thread, the relay, wakes
up once per step and writes the messages to a pipe. The process at the other end of the pipe (`worker`) is the bus
client. The training thread reads the log's messages from another pipe, without the relay.

If the worker dies, another one replaces it. This process keeps all messages that must not be lost, and sends them again
if they are not in the log. Observations in transit are lost and counted.
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

from oven_core.errors import OvenError, ProcessError, reason
from oven_core.protocol.codec import build_models
from oven_core.protocol.events import Entry
from oven_core.protocol.messages import LogMessage, RunEnded
from oven_core.protocol.subjects import learner_subject
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_learner.import_hook import collector_paused
from oven_learner.link import spool
from oven_learner.link.doorbell import Doorbell
from oven_learner.link.event_inbox import EventInbox
from oven_learner.link.link_interface import MessageFactory, UnbuiltMessage, build_message, message_id
from oven_learner.link.outbox import BUILD_BATCH, MAX_UNBUILT, MAX_WAITING_BYTES, OVERHEAD_BYTES, OutageLog
from oven_learner.link.pipes import Inlet, Outlet, SharedNumbers, pack
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import FINAL_TIMEOUT_S, SampleConverter, SampleQueue
from oven_learner.link.worker_messages import (
    BEGIN,
    GRACE_S,
    Closing,
    Frame,
    Resumed,
    Status,
    WorkerConfig,
    pack_observation,
    unpack_observation,
)

log = logging.getLogger("oven.learner")

POLL_S = 0.005
"""Seconds that the relay sleeps while the pipe is full or the worker starts, and minimum seconds between two wake-ups
for new messages. The training thread never wakes the relay, because the scheduler might then run it on the trainer's
core. On a busy machine, this costs milliseconds at the 99th percentile."""
HAS_SENT = SharedNumbers.HAS_SENT
UnsentFrame = tuple[int, bytes, bool]
"""A message's number, its packed frame, and whether it may be dropped."""
RESTART_PAUSE_S = 0.25
MAX_RESTART_PAUSE_S = 5.0
"""Initial and maximum pause before the worker is restarted, in seconds."""
MIN_POLL_S = 0.001
"""Seconds that the relay sleeps while the link is closing, or while it packs a backlog."""
SPOOL_TIMEOUT_S = 5.0
"""Maximum seconds for the worker to disconnect and write unsent messages to disk, after the timeout for sending."""
STATUS_POLL_S = 0.05
"""Seconds between two checks of the worker's status."""


class ProcessLink:
    """A `Link` through a child process, the worker. The training thread calls the public methods. It sends through a
    deque to the relay, and receives through a pipe from the worker. Everything else runs in the relay thread."""

    def __init__(
        self,
        url: str,
        run: str,
        credentials: Credentials | None,
        *,
        poll_s: float = POLL_S,
        pin: str | None = None,
        folder: Path | None = None,
        reads_machine: bool = False,
    ) -> None:
        """Args:
        pin: the learner's public key, if known.
        folder: the run's folder, for messages that could not be sent.
        reads_machine: whether to add memory and GPU readings to observations.
        """
        spool_folder = str(folder) if folder is not None else ""
        secret = secrets.token_bytes(16)
        self._config = WorkerConfig(url, run, credentials, pin, poll_s, secret, spool_folder, reads_machine)
        self._closing_timeout_s = self._closed_at = 0.0
        self._new_messages: deque[UnbuiltMessage] = deque()
        self.observe = self._new_messages.append  # no Python code runs in a call; `receive` rings the bell
        self._numbers = SharedNumbers()
        self._cells = self._numbers.cells
        self._events = EventInbox(self._numbers)
        self._samples = SampleQueue()
        self._past: ResumeState | None = None
        self._failure: BaseException | None = None
        self._opened, self._may_begin, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._relay = threading.Thread(target=self._run, name="oven-relay", daemon=True)
        # Used only by the relay:
        self._process: subprocess.Popen[bytes] | None = None
        self._status = Status()
        self._n = 0  # number of the last packed message
        self._observation_count = 0
        self._lost_count = 0
        self._unsent: deque[UnsentFrame] = deque()  # frames that wait until the pipe has space
        self._unsent_bytes = 0
        self._required: dict[int, MessageFactory] = {}  # n → message that must not be lost
        self._ready = False  # whether the worker has sent its first message
        self._sent_begin = self._sent_close = False
        self._outages = OutageLog()
        self._partial_line = b""
        self._last_lines: deque[str] = deque(maxlen=20)

    @property
    def dropped_count(self) -> int:
        """Number of dropped observations, as far as this process knows."""
        return self._lost_count + self._status.dropped_count

    @property
    def unsent(self) -> int:
        """Number of messages that the log has not confirmed, as far as this process knows."""
        return self._n + len(self._new_messages) - self._status.last_received + self._status.waiting_count

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self._process.pid if self._process is not None else None

    def open(self) -> ResumeState:
        self._relay.start()
        with collector_paused():
            build_models()  # now, and not in a training step; meanwhile, the worker starts
        self._opened.wait()
        if self._failure is not None:
            self._relay.join(GRACE_S)
            raise self._failure
        assert self._past is not None
        return self._past

    def begin(self) -> None:
        self._may_begin.set()
        self._cells[HAS_SENT] = 1

    def send(self, unbuilt: UnbuiltMessage) -> None:
        self._new_messages.append(unbuilt)
        self._cells[HAS_SENT] = 1

    def show(self, convert: SampleConverter) -> None:
        self._samples.put(convert)

    def receive(self) -> LogMessage | None:
        if self._new_messages:
            self._cells[HAS_SENT] = 1
        return self._events.receive()

    def close(self, timeout_s: float) -> bool:
        self._closing_timeout_s, self._closed_at = timeout_s, time.monotonic()
        self._closing.set()
        self._cells[HAS_SENT] = 1
        self._relay.join(timeout_s + SPOOL_TIMEOUT_S)
        if self._relay.is_alive() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._relay.join(GRACE_S)
        self._samples.close()
        self._events.close()
        self._numbers.close()
        if not self._status.is_final and self._config.folder and self._past is not None:
            self._spool_unsent()
        tracing.flush()
        return self._status.is_final and not self.unsent

    def _spool_unsent(self) -> None:
        """Write unsent messages to disk if the worker could not. Observations that only the worker had are lost."""
        config, status = self._config, self._status
        # The log has all required messages up to this number, and perhaps later ones.
        last_confirmed = status.last_received - status.waiting_count - status.dropped_count
        waiting: dict[int, UnbuiltMessage] = {n: factory for n, factory in self._required.items() if n > last_confirmed}
        waiting |= {n: unpack_observation(data) for n, data, droppable in self._unsent if droppable}
        entries = []
        for n in sorted(waiting):
            message = build_message(waiting[n])
            if isinstance(message, RunEnded):
                message = message.model_copy(update={"dropped_observations": self.dropped_count})
            subject = learner_subject(config.run, message)
            entries.append(Entry(subject, message.wire(), message_id(message, config.secret)))
        with contextlib.suppress(OvenError):  # the spool could not be opened at the start of the run either
            spool.write_unsent(spool.open_spool(config.folder, config.run), entries, config.credentials)

    def _run(self) -> None:
        """Run the relay thread, which restarts the worker until the learner closes the link."""
        pause = RESTART_PAUSE_S
        while True:
            started_at = time.monotonic()
            try:
                self._serve(self._config)
            except BaseException as error:
                if self._past is None:
                    self._failure = error
                else:
                    self._outages.record(error, len(self._unsent))
            if self._past is None and self._failure is None:
                output = "\n".join(self._last_lines)
                self._failure = ProcessError(f"the process that connects to the bus stopped immediately:\n{output}")
            self._opened.set()
            if self._failure is not None or self._closing.is_set():
                return
            if time.monotonic() - started_at > MAX_RESTART_PAUSE_S:  # it ran for long, so the earlier trouble is over
                pause = RESTART_PAUSE_S
            if self._closing.wait(pause):
                return
            pause = min(2 * pause, MAX_RESTART_PAUSE_S)
            self._config = replace(self._config, is_replacement=True, last_item=self._events.last_seq)

    def _serve(self, config: WorkerConfig) -> None:
        """Run one worker until it ends. Raises ProcessError if it cannot be started or ends unexpectedly."""
        worker_in, relay_out = os.pipe()
        relay_in, worker_out = os.pipe()
        items_in, items_out = os.pipe()
        bell_in, bell_out = os.pipe()
        outlet, inlet, items, bell = Outlet(relay_out), Inlet(relay_in), Inlet(items_in), Doorbell(bell_in)
        try:
            self._process = process = _start_worker(worker_in, worker_out, items_out, bell_out, self._numbers.fd)
        except OSError as error:
            for pipe_end in (outlet, inlet, items, bell):
                pipe_end.close()
            raise ProcessError(f"cannot start the process that connects to the bus: {reason(error)}") from error
        finally:
            for fd in (worker_in, worker_out, items_out, bell_out):
                os.close(fd)
        assert process.stderr is not None
        self._events.connect(items)
        self._ready = self._sent_begin = self._sent_close = False
        try:
            outlet.put(pack(config))
            os.set_blocking(process.stderr.fileno(), False)
            self._relay_messages(outlet, inlet, bell, process.stderr.fileno())
        finally:
            self._handle_worker_messages(inlet)
            bell.close()
            outlet.close()
            inlet.close()
            exit_code = process.wait()
            self._copy_log(process.stderr.fileno(), is_last=True)
            process.stderr.close()
        if self._past is not None and not self._closing.is_set() and (self._ready or exit_code):
            raise ProcessError(f"the process that connects to the bus stopped (exit code {exit_code})")

    def _relay_messages(self, outlet: Outlet, inlet: Inlet, bell: Doorbell, stderr: int) -> None:
        """Relay messages when there are new ones, and check the worker's status from time to time."""
        status_read_at = 0.0
        while True:
            bell.wait(self._pause_s())
            self._pack_new_messages()
            self._samples.wake()
            self._send(outlet)
            if time.monotonic() >= status_read_at + STATUS_POLL_S or self._closing.is_set() or not self._ready:
                status_read_at = time.monotonic()
                self._handle_worker_messages(inlet)
                self._copy_log(stderr)
                if inlet.is_exhausted:
                    return

    def _pause_s(self) -> float:
        """Return the maximum seconds to wait for new messages."""
        if self._closing.is_set() or self._new_messages:
            return MIN_POLL_S
        if self._unsent or self._samples.has_pending or not self._ready:
            return self._config.poll_s
        return STATUS_POLL_S

    def _pack_new_messages(self) -> None:
        """Pack new messages, only a few at a time, because the training thread may need the interpreter."""
        has_packed = False
        while self._new_messages:
            if has_packed and not self._closing.is_set() and len(self._new_messages) <= MAX_UNBUILT:
                break
            for _ in range(min(BUILD_BATCH, len(self._new_messages))):
                self._pack(self._new_messages[0])
                self._new_messages.popleft()  # only now, so that `unsent` always counts it
            has_packed = True

    def _pack(self, unbuilt: UnbuiltMessage) -> None:
        self._n += 1
        try:
            if isinstance(unbuilt, tuple):
                data = pack_observation(self._n, self._lost_count, unbuilt)
            else:
                data = pack(Frame(self._n, self._lost_count, unbuilt))
        except Exception as error:
            log.error("cannot build a message, so it is omitted: %s", reason(error))
            return
        if isinstance(unbuilt, tuple):
            self._observation_count += 1
        else:
            self._required[self._n] = unbuilt
        self._unsent.append((self._n, data, isinstance(unbuilt, tuple)))
        self._unsent_bytes += len(data) + OVERHEAD_BYTES
        self._drop_oldest_observations()

    def _drop_oldest_observations(self) -> None:
        """Drop the oldest observations, but no other messages, until the waiting messages fit."""
        while self._unsent_bytes > MAX_WAITING_BYTES:
            index = next((index for index, (_, _, is_droppable) in enumerate(self._unsent) if is_droppable), None)
            if index is None:
                return
            _, data, _ = self._unsent[index]
            del self._unsent[index]
            self._unsent_bytes -= len(data) + OVERHEAD_BYTES
            self._lost_count += 1

    def _send(self, outlet: Outlet) -> None:
        if not self._ready:
            return
        if self._may_begin.is_set() and not self._sent_begin:
            self._sent_begin = outlet.put(pack(BEGIN))
        while self._unsent:
            n, data, droppable = self._unsent[0]
            if not outlet.put(data if droppable else pack(Frame(n, self._lost_count, self._required[n]))):
                break
            self._unsent.popleft()
            self._unsent_bytes -= len(data) + OVERHEAD_BYTES
        else:
            self._samples.send(outlet)
        all_sent = not self._new_messages and not self._unsent and not self._waits_for_sample()
        if self._closing.is_set() and all_sent and not self._sent_close:
            self._sent_close = outlet.put(pack(Closing(self._closing_timeout_s)))
        outlet.flush()

    def _waits_for_sample(self) -> bool:
        """Whether the closing message waits for a sample of completions that is still being converted."""
        return self._samples.has_pending and time.monotonic() < self._closed_at + FINAL_TIMEOUT_S

    def _handle_worker_messages(self, inlet: Inlet) -> None:
        for message in inlet.take():
            match message:
                case Status():
                    self._status = message
                    if message.last_sent > self._config.last_sent:
                        self._config = replace(
                            self._config, last_sent=message.last_sent, logged_count=message.logged_count
                        )
                case Resumed():
                    self._requeue(message)
                    self._ready = True
                    self._outages.record_recovery(self.dropped_count)
                case ResumeState():
                    self._past, self._ready = message, True
                    self._events.last_seq = message.last_seq
                    self._config = replace(self._config, last_sent=message.last_seq)
                    self._opened.set()
                case BaseException() if self._past is None:
                    self._failure = message
                case BaseException():
                    self._outages.record(message, len(self._unsent))

    def _requeue(self, resumed: Resumed) -> None:
        """Queue the required messages that are not in the log and the observations that still wait in this process, in
        order. The observations that only the previous worker had are lost."""
        observations = [(n, data, True) for n, data, droppable in self._unsent if droppable]
        missing_factories = {n: factory for n, factory in self._required.items() if n > resumed.n}
        required = [(n, pack(Frame(n, self._lost_count, factory)), False) for n, factory in missing_factories.items()]
        self._unsent = deque(sorted([*observations, *required]))  # by n, which is unique
        self._unsent_bytes = sum(len(data) + OVERHEAD_BYTES for _, data, _ in self._unsent)
        self._lost_count = self._observation_count - len(observations) - resumed.logged_count
        self._status = Status(
            last_received=resumed.n, last_sent=self._config.last_sent, logged_count=resumed.logged_count
        )

    def _copy_log(self, stderr: int, is_last: bool = False) -> None:
        """Copy the worker's log output to the learner's log."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(stderr, 65536):
                self._partial_line += data
        if is_last and self._partial_line:
            self._partial_line += b"\n"
        *lines, self._partial_line = self._partial_line.split(b"\n")
        for raw_line in lines:
            line = raw_line.decode(errors="replace")
            self._last_lines.append(line)
            level_name, _, message = line.partition(" ")
            level = logging.getLevelNamesMapping().get(level_name)
            log.log(level or logging.ERROR, "%s", message if level else line)


def _start_worker(*fds: int) -> subprocess.Popen[bytes]:
    """Start the worker with the file descriptors of one pipe to read, three pipes to write, and the shared numbers. It
    has its own process group, so that Ctrl-C reaches only the learner."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "oven_learner.link.worker", *map(str, fds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=fds,
        process_group=0,
    )
