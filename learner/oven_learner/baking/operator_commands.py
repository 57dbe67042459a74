"""Send operator commands from a script. They are signed, logged and answered like those of the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, OvenError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import batches
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import RETRY_S, carried_out, new_command

ANSWER_S = 60.0
"""Timeout of a command. The receipt comes between two steps, and a step may be long."""


class CommandRefusedError(OvenError):
    """The mesh or the learner rejected a command; the message gives the reason."""

    exit_code = 1


def send_command(folder: Path, after: int, limit_s: float = ANSWER_S, **command: Any) -> Receipt | None:
    """Execute a command, and wait for its result in the log. Returns the learner's receipt, or None for an action
    without one.

    `after` is a log sequence number before the training's announcement: an earlier command would affect no training.
    Raises CommandRefusedError with the reason, and BusError if no result appears in time.
    """
    run = LocalRun(RunFolder(folder))
    order = new_command(**command)
    # In a separate thread: the caller may already run an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="oven-operator") as thread:
        result = thread.submit(lambda: asyncio.run(_send(run, after, order, limit_s))).result()
    if result.code:
        raise CommandRefusedError(result.line())
    return result.receipt


async def _send(run: LocalRun, after: int, order: OperatorCommand, limit_s: float) -> CommandResult:
    await _wait_for(run, after, lambda body: isinstance(body, RunStarted), limit_s)
    return await carried_out(run, order, limit_s)


def wait_for_choice(folder: Path, after: int, actuator: str, choice: str, ended: Callable[[], bool]) -> None:
    """Wait until the log announces an actuator's choice, or training has `ended`. Raises BusError."""

    def matches(body: object) -> bool:
        return (
            isinstance(body, ActuatorAnnounced) and body.actuator.name == actuator and choice in body.actuator.choices
        )

    with ThreadPoolExecutor(1, thread_name_prefix="oven-operator") as thread:
        thread.submit(lambda: asyncio.run(_wait_for(LocalRun(RunFolder(folder)), after, matches, None, ended))).result()


async def _wait_for(
    run: LocalRun,
    after: int,
    matches: Callable[[object], bool],
    limit_s: float | None,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Return when the log has a matching message after `after`, or `ended` is true."""
    async with asyncio.timeout(limit_s), run.connected("operator") as bus:
        while not ended():
            async for batch in batches(bus, run.run, after):
                if any(matches(event.body) for event in batch):
                    return
                after = batch[-1].seq
            await asyncio.sleep(RETRY_S)


def folder_of(folder: Path | None, run: str) -> Path:
    """Return the run's folder. Raises ConfigError if it is not on this machine, because it contains the operator's
    key."""
    if folder is None or not folder.is_dir():
        raise ConfigError(
            f"run {run!r} has no folder on this machine (OVEN_RUN_DIR), which contains the operator's key; run "
            "`oven-controller set …` where the stack runs"
        )
    return folder
