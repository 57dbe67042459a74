"""An operator's commands from the script itself: signed, logged and answered, as those of the command line are."""

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
"""So long a command may take: the receipt comes between two steps, and a step may be long."""


class CommandRefusedError(OvenError):
    """The mesh or the learner turned a command down; the message says why."""

    exit_code = 1


def said(folder: Path, after: int, limit_s: float = ANSWER_S, **command: Any) -> Receipt | None:
    """Carry a command out, and wait for what the log says of it. The learner's receipt; None where the action has none.
    `after`: a sequence of the log that the training's announcement comes after, since a command before it would be of
    no training. Raises CommandRefusedError with the reason, and BusError where the log says nothing in time."""
    run = LocalRun(RunFolder(folder))
    order = new_command(**command)
    # In a thread of its own: the caller may be in an event loop, which a second one must not be started in.
    with ThreadPoolExecutor(1, thread_name_prefix="oven-operator") as thread:
        result = thread.submit(lambda: asyncio.run(_said(run, after, order, limit_s))).result()
    if result.code:
        raise CommandRefusedError(result.line())
    return result.receipt


async def _said(run: LocalRun, after: int, order: OperatorCommand, limit_s: float) -> CommandResult:
    await _logged(run, after, lambda body: isinstance(body, RunStarted), limit_s)
    return await carried_out(run, order, limit_s)


def offered(folder: Path, after: int, actuator: str, choice: str, ended: Callable[[], bool]) -> None:
    """Wait until the log has the announcement of an actuator's choice, or training has `ended`. Raises BusError."""

    def is_it(body: object) -> bool:
        return (
            isinstance(body, ActuatorAnnounced) and body.actuator.name == actuator and choice in body.actuator.choices
        )

    with ThreadPoolExecutor(1, thread_name_prefix="oven-operator") as thread:
        thread.submit(lambda: asyncio.run(_logged(LocalRun(RunFolder(folder)), after, is_it, None, ended))).result()


async def _logged(
    run: LocalRun,
    after: int,
    is_it: Callable[[object], bool],
    limit_s: float | None,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """When the log has such a message after a sequence, or `ended`."""
    async with asyncio.timeout(limit_s), run.connected("operator") as bus:
        while not ended():
            async for batch in batches(bus, run.run, after):
                if any(is_it(event.body) for event in batch):
                    return
                after = batch[-1].seq
            await asyncio.sleep(RETRY_S)


def folder_of(place: Path | None, run: str) -> Path:
    """The run's folder. Raises ConfigError where this machine has none: the operator's key lies in it."""
    if place is None or not place.is_dir():
        raise ConfigError(
            f"run {run!r} has no folder on this machine (OVEN_RUN_DIR), and the operator's key lies in it: say it "
            "where the stack runs, `oven-controller set …`"
        )
    return place
