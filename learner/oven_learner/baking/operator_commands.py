"""Send operator commands from a script, including swaps of judges.

The commands are signed, logged and answered like those of the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oven_core.errors import ConfigError, OvenError, UnknownNameError, reason
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_core.protocol.messages import Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.rewards import Committee
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import batches
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import RETRY_S, carried_out, new_command
from oven_runs.settings.committee_settings import MemberSettings

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


Command = Callable[..., Receipt | None]
"""Executes an operator command; raises CommandRefusedError."""


def model_of(provider: str, model: str, **options: Any) -> JudgeSpec:
    """Build a JudgeSpec. Raises ConfigError for invalid values."""
    try:
        return JudgeSpec(provider=provider, model=model, **options)
    except ValidationError as error:
        raise ConfigError(f"the judge {provider}/{model} cannot be asked: {reason(error)}") from None


def member_in(members: Mapping[str, MemberSettings], role: str, name: str | None) -> str:
    """Return the member with this `name`, or the only one in this role.

    Raises UnknownNameError if there is none, and ConfigError if there are several.
    """
    if name is not None:
        if name not in members:
            raise UnknownNameError("member of the committee", name, members)
        return name
    candidates = [key for key, member in members.items() if member.role == role]
    if not candidates:
        raise UnknownNameError("role", role, {member.role for member in members.values()})
    if len(candidates) > 1:
        raise ConfigError(
            f"{', '.join(candidates)} judge as {role}; choose one, swap_agent({role!r}, name={candidates[0]!r}, …)"
        )
    return candidates[0]


def start_with(committee: Committee, names: Sequence[str], model: JudgeSpec) -> None:
    """Before training: probe the model in each member's process, and use it if all probes succeed. Raises
    CommandRefusedError with the reason."""
    probes = {name: _probe(committee, name, model) for name in names}
    for name, probe in probes.items():
        try:
            refused = probe.result(timeout=2 * (committee.remote.deadline_s if committee.remote else 1.0))
        except Late:
            refused = "the probe timed out"
        if refused:
            raise CommandRefusedError(f"{name} keeps {committee.judges.active(name)}: {refused}")
    for name in names:
        committee.choose_judge(name, committee.judges.offer(name, model))


def _probe(committee: Committee, name: str, model: JudgeSpec) -> Future[str]:
    assert committee.remote is not None  # it has the member
    return committee.remote.probe(name, model)


def swap_all(command: Command, names: Sequence[str], model: JudgeSpec, deadline_s: float) -> dict[str, Receipt]:
    """During training: offer the model to each member, and choose it if all accept. Returns the receipts of the
    choices.

    Raises CommandRefusedError with the reason.
    """
    for name in names:
        command(limit_s=deadline_s, action="offer", actuator=actuator_of(name), judge=model)
    receipts: dict[str, Receipt] = {}
    for name in names:
        receipt = command(action="set", actuator=actuator_of(name), value=model.identity)
        assert receipt is not None  # an executed choice has a receipt
        receipts[name] = receipt
    return receipts
