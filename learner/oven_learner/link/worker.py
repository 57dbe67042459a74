"""The child process of `process_link.ProcessLink`, which connects the learner to the bus.

It reads the learner's messages from one pipe and appends them to the run's log. It writes events from the log to
another pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.cpu_affinity import yield_cpu_to_training
from oven_core.errors import BusError, OvenError
from oven_core.protocol.messages import LogMessage, Observation
from oven_core.security.signing import Keyring
from oven_core.telemetry import tracing
from oven_learner.link import doorbell, spool
from oven_learner.link.bus_session import BusSession
from oven_learner.link.link_interface import build_observation
from oven_learner.link.log_reader import LogReader
from oven_learner.link.log_writer import LogWriter
from oven_learner.link.machine_readings import MachineReadings
from oven_learner.link.outbox import OutageLog
from oven_learner.link.pipes import Inlet, Outlet, SharedNumbers, pack
from oven_learner.link.sample_queue import SamplePublisher
from oven_learner.link.worker_messages import BEGIN, GRACE_S, Closing, Frame, LogItem, Resumed, Status, WorkerConfig
from oven_runs.home.learner_spool import Spool, append_missing

log = logging.getLogger("oven.learner")

STATUS_S = 0.5
"""Minimum seconds between two messages with a changed status. The final status is sent immediately."""


def main(args: list[str]) -> int:
    """Run the process. `args` are the file descriptors of the pipe to read, the pipe to write, the pipe for events from
    the log, the pipe on which the relay waits, and the shared numbers."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)  # the process must not end before the learner
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    inlet_fd, outlet_fd, items_fd, bell_fd, numbers_fd = map(int, args)
    inlet, outlet, items, numbers = Inlet(inlet_fd), Outlet(outlet_fd), Outlet(items_fd), SharedNumbers(numbers_fd)
    while not (frames := inlet.take()):
        select.select([inlet.fd], [], [])
        if inlet.is_exhausted:
            return 0
    config: WorkerConfig = frames.pop(0)
    ring = partial(doorbell.ring, numbers, bell_fd, config.poll_s)
    threading.Thread(target=ring, name="doorbell", daemon=True).start()
    tracing.start("learner", config.run)
    try:
        return Worker(config, inlet, outlet, items, numbers, frames).run()
    finally:
        tracing.shutdown()


class Worker:
    """Writes and reads the log for the learner at the other end of the pipes."""

    def __init__(
        self,
        config: WorkerConfig,
        inlet: Inlet,
        outlet: Outlet,
        items: Outlet,
        numbers: SharedNumbers,
        frames: list[Any],
    ) -> None:
        """`frames` are the messages that arrived together with the configuration."""
        self._config, self._inlet, self._outlet, self._items = config, inlet, outlet, items
        self._numbers, self._first_frames = numbers, frames
        contexts, outages, run = tracing.Contexts(), OutageLog(), config.run
        self._writer = LogWriter(run, config.secret, contexts, outages)
        self._reader = LogReader(run, Keyring(config.pin), config.secret, contexts, self._deliver)
        self._samples = SamplePublisher(run)
        self._session = BusSession(
            config.url, run, config.credentials, self._writer, self._reader, outages, (self._samples.run,)
        )
        self._gave_up = False
        self._send_task: asyncio.Task[None] | None = None
        self._has_received = asyncio.Event()
        self._last_received = 0
        self._status, self._status_at = Status(), 0.0
        self._machine = MachineReadings(os.getppid()) if config.reads_machine else None
        self._spool: Spool | None = None
        self._unsent_count = self._spooled_count = 0  # set when the run ends

    def run(self) -> int:
        """Run until the learner closes the link or dies. Return the exit code."""
        try:
            self._spool = spool.open_spool(self._config.folder, self._config.run)
            failure = asyncio.run(self._serve())
        except OvenError as error:
            spool.release_spool(self._spool)
            self._post(error)
            self._flush_to_learner()
            return 0
        finally:
            tracing.flush()
        if failure is not None and not self._gave_up:
            log.error("the link to the bus stopped (%s); training continues with its current settings", failure)
            if not self._writer.closing:
                return 1  # the learner starts a replacement
        self._finish()
        return 0

    async def _serve(self) -> BaseException | None:
        """Open the link, and use it until it is closed or fails. Return the failure. Raises OvenError if it cannot be
        opened."""
        bus = await self._session.open(self._begin)
        self._send_task = asyncio.create_task(self._session.run(bus))
        collect_task = asyncio.create_task(self._collect())
        try:
            await self._send_task
        except BaseException as error:
            return error
        finally:
            await end(collect_task)
        return None

    def _finish(self) -> None:
        """Save unsent messages in the spool, a file in the run's folder, and send the final status to the learner."""
        unsent = self._writer.take_remaining()
        self._unsent_count = len(unsent)
        self._spooled_count = spool.write_unsent(self._spool, unsent, self._config.credentials)
        self._post(self._current_status(is_final=True))
        self._flush_to_learner()

    def _flush_to_learner(self) -> None:
        """Wait until the learner has read all queued data, but at most GRACE_S."""
        deadline = time.monotonic() + GRACE_S
        while not self._flush() and time.monotonic() < deadline:
            time.sleep(self._config.poll_s)

    async def _begin(self, bus: Bus) -> None:
        """Append the spool's messages to the log, and read the parts of the log that the learner needs."""
        config = self._config
        if self._spool is not None:
            if self._spool.content.messages:
                log.warning("appending %s to the log first: %s", self._spool.path, self._spool.content.summary())
                await append_missing(bus, config.run, self._spool.content.messages)
            spool.empty_spool(self._spool)
        if not config.is_replacement:
            past = await self._reader.catch_up(bus)
            self._writer.last_sent = past.last_seq
            self._post(past)
            return
        self._writer.last_sent, self._writer.logged_count = config.last_sent, config.logged_count
        await self._reader.take_over(bus, config.last_item)
        async for message in self._writer.own_messages(bus):
            self._last_received = message.n
            if isinstance(message, Observation):
                self._writer.logged_count += 1
        self._post(Resumed(self._last_received, self._writer.logged_count))

    async def _collect(self) -> None:
        """Receive the learner's messages. This continues during an outage, so that old observations are dropped."""
        for frame in self._first_frames:
            self._handle(frame)
        asyncio.get_running_loop().add_reader(self._inlet.fd, self._receive)
        while True:
            if self._writer.collect():
                await asyncio.sleep(0)
            else:
                await self._wait()

    def _receive(self) -> None:
        """Handle the learner's messages. The pipe wakes this process without delaying training. This is a callback and
        no task, which would take another iteration of the event loop."""
        for frame in self._inlet.take():
            self._handle(frame)
        self._writer.collect()
        self._has_received.set()
        if self._inlet.is_exhausted:  # try to send its last messages within GRACE_S
            asyncio.get_running_loop().remove_reader(self._inlet.fd)
            self._end_within(GRACE_S)

    async def _wait(self) -> None:
        """Wait for messages, or until there is something else to do."""
        timeout_s: float | None = None
        if not self._flush() or self._writer.closing:
            timeout_s = self._config.poll_s
        elif self._writer.unsent or self._current_status() != self._status:
            timeout_s = STATUS_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_received.wait()
        self._has_received.clear()
        self._report()

    def _handle(self, frame: Any) -> None:
        if isinstance(frame, Frame):
            self._last_received, self._writer.lost_count = frame.n, frame.lost_count
            self._writer.put(frame.factory)
        elif isinstance(frame, tuple):  # an observation
            self._last_received, self._writer.lost_count, *arguments = frame
            if self._machine is not None:
                arguments[-1].update(self._machine.take_if_due())  # the metrics
            self._writer.put(partial(build_observation, *arguments), droppable=True)
        elif isinstance(frame, dict):  # a sample of completions
            self._samples.put(frame)
        elif frame == BEGIN:
            self._reader.begin()
        elif isinstance(frame, Closing):
            self._end_within(frame.timeout_s)

    def _end_within(self, timeout_s: float) -> None:
        """Send the remaining messages, and give up after the timeout."""
        self._writer.closing = True
        asyncio.get_running_loop().call_later(timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._gave_up = True
        if self._send_task is not None:
            self._send_task.cancel()

    def _deliver(self, seq: int, body: LogMessage) -> None:
        self._items.post(pack(LogItem(seq, body)))
        self._numbers.count_event()

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._status_at + STATUS_S and (status := self._current_status()) != self._status:
            self._status, self._status_at = status, now
            self._post(status)

    def _current_status(self, is_final: bool = False) -> Status:
        writer = self._writer
        return Status(
            last_received=self._last_received,
            waiting_count=writer.unsent + self._unsent_count,
            dropped_count=writer.dropped_count,
            last_sent=writer.last_sent,
            logged_count=writer.logged_count,
            is_final=is_final,
            spooled_count=self._spooled_count,
        )

    def _post(self, message: object) -> None:
        """Send a message to the learner. If an error cannot be pickled, send its text."""
        try:
            frame = pack(message)
        except Exception as error:
            if not isinstance(message, OvenError):
                raise
            frame = pack(BusError(f"{message} ({error})"))
        self._outlet.post(frame)

    def _flush(self) -> bool:
        """Write queued data to the pipes to the learner. Return whether everything is written."""
        if not self._items.is_idle:
            self._items.flush()
            self._numbers.count_event()  # there may be new items since the last count
        return self._outlet.flush() and self._items.is_idle


if __name__ == "__main__":
    yield_cpu_to_training()
    gc.freeze()  # do not scan imported objects again
    sys.exit(main(sys.argv[1:]))
