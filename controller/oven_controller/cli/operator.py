"""Operator commands to a running run: hold, resume, stop, approve, veto, set, mute, trust, autonomy.

Each waits for what the log says came of it, prints that in a line, and ends with 0 (done), 1 (the answer is no) or 3
(no answer in time: `oven_runs.operator.operator_client`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oven_controller.cli import completion
from oven_controller.cli.lazy_group import single_command
from oven_controller.cli.options import HERE, Json, LiveRunName, SameRun, from_anywhere, one_run
from oven_controller.cli.options import LiveRunOption as Run
from oven_runs.access.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_core.protocol.messages import Value

Wait = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help="Wait at most so long for the answer and the receipt. By default until two steps have ended after the "
        "command, and 5 s at least; where no step ends (a run that is held or stuck), 60 s, or three times the newest "
        "step's length if that is more.",
        show_default="two steps",
    ),
]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the log.")]
Agent = Annotated[str, typer.Argument(help="The agent's name.", autocompletion=completion.agents)]
Knobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="ACTUATOR", help="Actuators.", show_default="all of them", autocompletion=completion.knobs),
]
Level = Literal["observe", "advise", "auto"]


@from_anywhere
def hold(
    run: LiveRunName = None,
    run_: SameRun = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Pause training at the next step; the learner keeps listening. Works without a mesh.

    Example: oven-controller hold --reason "looking at the samples"
    """
    _say(one_run(run, run_), wait, as_json, at, action="hold", reason=reason)


@from_anywhere
def resume(
    run: LiveRunName = None,
    run_: SameRun = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Continue after a hold. Works without a mesh. (To continue a run that is down: `up --resume`.)

    Example: oven-controller resume
    """
    _say(one_run(run, run_), wait, as_json, at, action="resume", reason=reason)


@from_anywhere
def stop(
    run: LiveRunName = None,
    run_: SameRun = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Ask the learner to end the run, with a checkpoint. Works without a mesh.

    Example: oven-controller stop grpo-1121-0231
    """
    _say(one_run(run, run_), wait, as_json, at, action="stop", reason=reason)


@from_anywhere
def approve(
    decision: Annotated[
        str, typer.Argument(help="An advised decision's id, or its actuator.", autocompletion=completion.knobs)
    ],
    run: Run = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Apply an advised decision: guardrails are checked again, and the value is read back.

    Example: oven-controller approve optimizer.lr_scale --reason "the loss does look flat"
    """
    _say(run, wait, as_json, at, action="approve", of=decision, reason=reason)


@from_anywhere
def veto(
    ballot: Annotated[
        str,
        typer.Argument(
            help="An open ballot's id, or its actuator; or an advised decision's.",
            autocompletion=completion.knobs,
        ),
    ],
    run: Run = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Reject an open ballot at once, or an advised decision for good.

    Example: oven-controller veto optimizer.lr_scale --reason "the schedule ends soon anyway"
    """
    _say(run, wait, as_json, at, action="veto", of=ballot, reason=reason)


@from_anywhere
def set_(
    actuator: Annotated[
        str, typer.Argument(help="The actuator, as the run announces it.", autocompletion=completion.knobs)
    ],
    value: Annotated[
        str | None, typer.Argument(help="A number, a name, or shares as JSON; none for an action.")
    ] = None,
    run: Run = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Turn a knob within its bounds, whatever the agents say, and read it back.

    Example: oven-controller set optimizer.lr_scale 0.5

    Example: oven-controller set data.mixture '{"easy": 0.5, "hard": 0.5}'

    Example: oven-controller set run.undo_rollback
    """
    _say(run, wait, as_json, at, action="set", actuator=actuator, value=parsed(value), reason=reason)


# A value may be negative, and is not an option then.
set_command = single_command(set_, ignore_unknown_options=True)


@from_anywhere
def mute(
    agent: Agent, run: Run = None, reason: Reason = "", wait: Wait = None, as_json: Json = False, at: Endpoint = HERE
) -> None:
    """Make an agent a shadow: its votes are logged and do not count.

    Example: oven-controller mute curriculum --reason "it chases noise"
    """
    _say(run, wait, as_json, at, action="mute", agent=agent, reason=reason)


@from_anywhere
def unmute(
    agent: Agent, run: Run = None, reason: Reason = "", wait: Wait = None, as_json: Json = False, at: Endpoint = HERE
) -> None:
    """Let a muted agent's votes count again.

    Example: oven-controller unmute curriculum
    """
    _say(run, wait, as_json, at, action="unmute", agent=agent, reason=reason)


@from_anywhere
def trust(
    agent: Agent,
    actuators: Knobs = None,
    run: Run = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Let an agent's votes carry and veto from now on, on these actuators alone, or on all of them.

    Example: oven-controller trust clip grad.clip
    """
    _say(run, wait, as_json, at, action="trust", agent=agent, actuators=tuple(actuators or ()), reason=reason)


@from_anywhere
def distrust(
    agent: Agent,
    actuators: Knobs = None,
    run: Run = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Put an agent on probation: its votes are counted and scored, and carry and veto nothing.

    Example: oven-controller distrust clip --reason "it chases noise"
    """
    _say(run, wait, as_json, at, action="distrust", agent=agent, actuators=tuple(actuators or ()), reason=reason)


@from_anywhere
def autonomy(
    level: Annotated[Level, typer.Argument(help="observe: log only. advise: a person approves. auto: act.")],
    actuator: Annotated[
        str, typer.Argument(help="One actuator.", show_default="all of them", autocompletion=completion.knobs)
    ] = "",
    run: Run = None,
    reason: Reason = "",
    wait: Wait = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Change what the mesh may do by itself, from now on.

    Example: oven-controller autonomy advise optimizer.lr_scale
    """
    _say(run, wait, as_json, at, action="autonomy", actuator=actuator, autonomy=level, reason=reason)


def parsed(text: str | None) -> Value:
    """A number, a JSON string or JSON object of shares as such; anything else is a choice's name. Raises ConfigError
    for what begins like JSON and is none."""
    from oven_core.errors import ConfigError
    from oven_core.errors import reason as wrong

    if text is None:
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "[", '"'):
            remedy = """write e.g. '{"easy": 0.5, "hard": 0.5}', in quotes for the shell"""
            raise ConfigError(f"the value {text[:80]!r} is not JSON ({wrong(error)}); {remedy}") from error
        return text
    if isinstance(value, bool) or not isinstance(value, int | float | str | dict):
        return text  # a choice may be called true, or null
    if isinstance(value, dict) and not all(type(share) in (int, float) for share in value.values()):
        raise ConfigError(f"the value {text!r} has a share that is not a number; give each component one, e.g. 0.5")
    return value


def _say(run: str | None, wait: float | None, as_json: bool, at: Endpoint, **fields: Any) -> None:
    import asyncio
    import uuid

    from pydantic import ValidationError

    from oven_core.errors import ConfigError
    from oven_core.protocol.operator_messages import OperatorCommand
    from oven_core.terminal_text import say
    from oven_runs.access.run_finder import find_run
    from oven_runs.log.command_result import CommandReport
    from oven_runs.operator.operator_client import carried_out

    access = find_run(run, at, running=True)
    try:
        command = OperatorCommand(id=uuid.uuid4().hex, **fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = first["loc"][0]
        raise ConfigError(f"{where} {str(fields.get(str(where)))[:80]!r} cannot be sent: {first['msg']}") from error
    result = asyncio.run(carried_out(access, command, wait))
    if as_json:
        print(CommandReport.of(result).model_dump_json(ensure_ascii=True))
    else:
        say(result.line())
    if result.code:
        raise typer.Exit(result.code)
