"""Operator commands for a running run, generated from the table in `oven_core.protocol.operator_actions`.

Each command logs the action, waits for the answer and prints it as one line. Exit codes: 0 done, 1 refused, 3 timeout
(`oven_runs.operator.operator_client`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import click

from oven_controller.cli import completion
from oven_controller.cli.options import (
    DEFAULT_LIVE_RUN,
    Decorator,
    json_option,
    print_result,
    reason_option,
    remote_options,
    run_argument,
    run_option,
)
from oven_controller.cli.options import argument as add_argument
from oven_core.errors import ConfigError
from oven_core.errors import reason as error_text
from oven_core.protocol.messages import Value
from oven_core.protocol.operator_actions import ACTIONS, Action, Argument, Kind
from oven_core.protocol.rules import Autonomy
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_finder import find_run
from oven_runs.log.command_result import CommandReport
from oven_runs.operator.operator_client import execute_command, new_command

NEGATIVE_VALUES: Final = {"ignore_unknown_options": True}
"""Context settings of a command with a value. Without them, a negative value would be parsed as an option."""
wait_option = click.option(
    "--wait",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    show_default="two steps",
    help="Maximum wait for the answer and the receipt. By default the command waits until two steps have ended, and at "
    "least 5 s. If no step ends because the run is held or stuck, it waits 60 s, or 3 times the last step's duration "
    "if that is longer.",
)
COMPLETIONS: Final[Mapping[Kind, Any]] = {
    "decision": completion.knobs,
    "actuator": completion.knobs,
    "actuators": completion.knobs,
    "agent": completion.agents,
}


def build_command(action: Action) -> click.Command:
    """Build the command for an action."""

    @reason_option
    @wait_option
    @json_option
    @remote_options
    def send_action(
        run: str | None, reason: str, wait: float | None, as_json: bool, endpoint: Endpoint, **values: Any
    ) -> int:
        fields = {argument.field: _parse_argument(argument, values[argument.name]) for argument in action.arguments}
        return send(run, endpoint, wait, as_json, action=action.name, reason=reason, **fields)

    run_name = run_option("Run name.", show_default=DEFAULT_LIVE_RUN)
    parameters = [*map(_parameter, action.arguments), run_name if action.arguments else run_argument(DEFAULT_LIVE_RUN)]
    function: Callable[..., Any] = send_action
    for parameter in reversed(parameters):
        function = parameter(function)
    examples = [f"Example: oven-controller {action.name} {example}".strip() for example in action.examples]
    text = "\n\n".join([f"{action.summary}. {action.detail}".strip(), *examples])
    has_value = any(argument.kind == "value" for argument in action.arguments)
    return click.command(action.name, help=text, context_settings=NEGATIVE_VALUES if has_value else {})(function)


def _parameter(argument: Argument) -> Decorator:
    """Return the decorator that adds an action's argument to its command."""
    name = argument.name
    settings: Any = {"shell_complete": COMPLETIONS.get(argument.kind), "help": argument.help}
    match argument.kind:
        case "flag":
            return click.option(f"--{name}", is_flag=True, help=argument.help)
        case "actuators":
            return add_argument(name, nargs=-1, metavar="[ACTUATOR]...", **settings)
        case "level":
            return add_argument(name, type=click.Choice(get_args(Autonomy)), **settings)
    return add_argument(name, required=argument.default is None and argument.kind != "value", **settings)


def _parse_argument(argument: Argument, value: Any) -> Any:
    if argument.kind == "value":
        return parse_value(value)
    if argument.kind == "actuators":
        return tuple(value)
    return argument.default if value is None else value


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
set_command = build_command(ACTIONS["set"])
