"""Operator commands for a running run, generated from the table in `oven_core.protocol.operator_actions`.

Each command logs the action, waits for the answer and prints it as one line. Exit codes: 0 done, 1 refused, 3 timeout
(`oven_runs.operator.operator_client`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import typer

from oven_controller.cli import completion
from oven_controller.cli.lazy_group import single_command
from oven_controller.cli.options import (
    LOCAL,
    Json,
    LiveRunName,
    LiveRunOption,
    Reason,
    RunAlias,
    one_run,
    print_result,
    remote_options,
)
from oven_core.errors import ConfigError
from oven_core.errors import reason as error_text
from oven_core.protocol.messages import Value
from oven_core.protocol.operator_actions import ACTIONS, Action, Argument, Kind
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_finder import find_run
from oven_runs.log.command_result import CommandReport
from oven_runs.operator.operator_client import execute_command, new_command

Wait = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help="Maximum wait for the answer and the receipt. By default the command waits until two steps have ended, "
        "and at least 5 s. If no step ends because the run is held or stuck, it waits 60 s, or 3 times the last step's "
        "duration if that is longer.",
        show_default="two steps",
    ),
]

ARGUMENT_TYPES: Final[Mapping[Kind, Any]] = {
    "decision": str,
    "actuator": str,
    "actuators": list[str] | None,
    "agent": str,
    "value": str | None,
    "level": Literal["observe", "advise", "auto"],
}
ARGUMENT_COMPLETIONS: Final[Mapping[Kind, Any]] = {
    "decision": completion.knobs,
    "actuator": completion.knobs,
    "actuators": completion.knobs,
    "agent": completion.agents,
}


def build_command(action: Action) -> Callable[..., int]:
    """Build the command function for an action."""

    def command(
        *,
        run: str | None,
        run_: str | None = None,
        reason: str,
        wait: float | None,
        as_json: bool,
        endpoint: Endpoint,
        **arguments: Any,
    ) -> int:
        fields = {argument.field: _parse_argument(argument, arguments[argument.name]) for argument in action.arguments}
        return send(one_run(run, run_), endpoint, wait, as_json, action=action.name, reason=reason, **fields)

    examples = [f"Example: oven-controller {action.name} {example}".strip() for example in action.examples]
    command.__doc__ = "\n\n".join([f"{action.summary}. {action.detail}".strip(), *examples])
    shared: list[tuple[str, Any, Any]] = [("reason", Reason, ""), ("wait", Wait, None), ("as_json", Json, False)]
    run_options = [("run", LiveRunOption, None)]
    if not action.arguments:
        run_options = [("run", LiveRunName, None), ("run_", RunAlias, None)]
    parameters = [_build_parameter(argument) for argument in action.arguments]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    for name, annotation, default in [*run_options, *shared, ("endpoint", Endpoint, LOCAL)]:
        parameters.append(inspect.Parameter(name, keyword_only, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return remote_options(command)


def _build_parameter(argument: Argument) -> inspect.Parameter:
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    if argument.kind == "flag":
        flag = Annotated[bool, typer.Option(f"--{argument.name}", help=argument.help)]
        return inspect.Parameter(argument.name, keyword_only, default=False, annotation=flag)
    default: Any = inspect.Parameter.empty if argument.default is None else argument.default
    if argument.kind in ("value", "actuators"):
        default = None  # an action has no value, and without actuators, all are meant
    annotation = typer.Argument(
        metavar="ACTUATOR" if argument.kind == "actuators" else None,
        help=argument.help,
        show_default="all of them" if argument.default is not None else False,
        autocompletion=ARGUMENT_COMPLETIONS.get(argument.kind),
    )
    return inspect.Parameter(
        argument.name,
        keyword_only,
        default=default,
        annotation=Annotated[ARGUMENT_TYPES[argument.kind], annotation],
    )


def _parse_argument(argument: Argument, value: Any) -> Any:
    if argument.kind == "value":
        return parse_value(value)
    return tuple(value or ()) if argument.kind == "actuators" else value


def parse_value(text: str | None) -> Value:
    """Parse a number, a JSON string or a JSON object of shares. Anything else is the name of a choice. Raises
    ConfigError for a string that starts like JSON but is not valid."""
    if text is None:
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "[", '"'):
            remedy = """write e.g. '{"easy": 0.5, "hard": 0.5}', in quotes for the shell"""
            raise ConfigError(f"the value {text[:80]!r} is not JSON ({error_text(error)}); {remedy}") from error
        return text
    if isinstance(value, bool) or not isinstance(value, int | float | str | dict):
        return text  # a choice may be named true or null
    if isinstance(value, dict) and not all(type(share) in (int, float) for share in value.values()):
        raise ConfigError(f"the value {text!r} has a share that is not a number; write e.g. 0.5")
    return value


def send(run: str | None, endpoint: Endpoint, wait: float | None, as_json: bool, **command: Any) -> int:
    """Send an operator's command to a running run, print the outcome, and return the exit code. Raises OvenError."""
    access = find_run(run, endpoint, running=True)
    result = asyncio.run(execute_command(access, new_command(**command), wait))
    print_result(as_json, CommandReport.of_result(result), [result.line()])
    return result.code


hold_command = build_command(ACTIONS["hold"])
resume_command = build_command(ACTIONS["resume"])
stop_command = build_command(ACTIONS["stop"])
approve_command = build_command(ACTIONS["approve"])
veto_command = build_command(ACTIONS["veto"])
mute_command = build_command(ACTIONS["mute"])
unmute_command = build_command(ACTIONS["unmute"])
trust_command = build_command(ACTIONS["trust"])
distrust_command = build_command(ACTIONS["distrust"])
autonomy_command = build_command(ACTIONS["autonomy"])
# Without this, a negative value would be parsed as an option.
set_command = single_command(build_command(ACTIONS["set"]), ignore_unknown_options=True)
