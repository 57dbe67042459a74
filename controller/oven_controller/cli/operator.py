"""`hold`, `resume` and `stop`: a person's word to a run that is up."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from oven_controller.cli.runs import RunName

LOGGED_S = 5.0

Reason = Annotated[str, typer.Option(help="Why; it stands in the log.")]


def register(app: typer.Typer) -> None:
    app.command()(hold)
    app.command()(resume)
    app.command()(stop)


def hold(run: RunName = None, reason: Reason = "") -> None:
    """Pause training at the next step; the learner goes on listening.

    Example: oven-controller hold --reason "looking at the samples"
    """
    _command(run, "hold", reason)


def resume(run: RunName = None, reason: Reason = "") -> None:
    """Go on after a hold. (To continue a run that is down: `up --resume`.)

    Example: oven-controller resume
    """
    _command(run, "resume", reason)


def stop(run: RunName = None, reason: Reason = "") -> None:
    """Ask the learner to end the run, with a checkpoint.

    Example: oven-controller stop grpo-1121-0231
    """
    _command(run, "stop", reason)


def _command(run: str | None, action: Literal["hold", "resume", "stop"], reason: str) -> None:
    import asyncio
    import uuid

    from oven_controller.errors import BusError
    from oven_controller.home import Home
    from oven_controller.messages import OperatorCommand
    from oven_controller.names import Subjects
    from oven_controller.stack.reading import connected

    folder = Home().find(run, running=True)
    command = OperatorCommand(id=uuid.uuid4().hex, action=action, reason=reason)

    async def send() -> int:
        async with connected(folder, "operator") as bus:
            subject = Subjects(folder.run).operator("operator")
            while True:
                try:
                    return await bus.append(subject, command.wire(), message_id=command.id)
                except BusError as error:
                    failed.append(str(error))
                    await asyncio.sleep(0.1)

    failed: list[str] = []

    async def within() -> int:
        try:
            return await asyncio.wait_for(send(), LOGGED_S)
        except TimeoutError:
            why = failed[-1] if failed else "no answer"
            raise BusError(f"{action} does not stand in the log after {LOGGED_S:g} s ({why})") from None

    seq = asyncio.run(within())
    print(f"{action}: logged as event {seq} of {folder.run}")
