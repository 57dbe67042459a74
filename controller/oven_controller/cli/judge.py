"""The `judge` commands: list, swap, mute, add and remove the judges of a running reward committee."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import click
from pydantic import ValidationError

from oven_controller.cli import completion
from oven_controller.cli.options import (
    DEFAULT_LIVE_RUN,
    DEFAULT_RUN,
    argument,
    json_option,
    print_result,
    reason_option,
    run_option,
)
from oven_core.errors import ConfigError, OvenError, UnknownNameError
from oven_core.errors import reason as error_text
from oven_core.protocol import names
from oven_core.protocol.judge_spec import OFF, JudgeSpec, actuator_of
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.committee_view import CommitteeView
from oven_runs.operator.operator_client import execute_command, new_command
from oven_runs.settings.committee_members import check_judge, judge_of, new_member
from oven_runs.settings.committee_settings import CommitteeSettings

TEST_MARGIN_S = 10.0
"""Seconds added to the committee's deadline, because the learner starts and ends a test question only between steps."""
JOIN_TIMEOUT_S = 30.0
"""Seconds to wait for a new member's process to start. The learner waits equally long."""

member_argument = argument("name", shell_complete=completion.judges, help="The committee member.")
running_run_option = run_option("Run name.", show_default=DEFAULT_LIVE_RUN)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a judge's model. The command gets them as `api`: fields of a JudgeSpec."""

    @click.option("--provider", required=True, help="The provider whose API it uses, as in committee.members.NAME.")
    @click.option("--model", required=True, help="The provider's name for the model.")
    @click.option("--base-url", default="", show_default="the provider's address", help="Address of the API.")
    @click.option(
        "--key-env",
        default="",
        show_default="the provider's usual variable",
        help="Environment variable with the key, in the member's process. The key itself is never sent.",
    )
    @click.option("--logprobs", is_flag=True, help="Request log-probabilities of its tokens.")
    @click.option("--top-logprobs", type=int, default=5, help="Alternatives per token, with --logprobs: 1 to 20.")
    @functools.wraps(command)
    def wrapper(
        *, provider: str, model: str, base_url: str, key_env: str, logprobs: bool, top_logprobs: int, **options: Any
    ) -> Any:
        api = {"provider": provider, "model": model, "base_url": base_url, "key_env": key_env}
        return command(api=api | {"logprobs": logprobs, "top_logprobs": top_logprobs}, **options)

    return wrapper


@click.command()
@run_option("Run name.", show_default=DEFAULT_RUN)
@json_option
def list_judges(run: str | None, as_json: bool) -> None:
    """List the remote members with model, role, weight and state, e.g. why one returns no scores.

    Example: oven-controller judge list --json
    """
    folder = Home().find(run)
    roles = {name: member.role for name, member in _read_settings(folder).judges.items()}
    members = _read_view(folder).member_views(roles)
    weights = ["" if member.weight is None else f"{member.weight:.3g}" for member in members]
    lines = [
        f"{member.member:<16} {member.role:<12} {weight:>6}  {member.judge}  ({member.state})"
        for member, weight in zip(members, weights, strict=True)
    ]
    if not lines and roles:
        lines = [f"{folder.run} has not announced its judges yet: {', '.join(roles)}"]
    elif not lines:
        lines = [f"{folder.run} has no remote committee members; committee.members configures them"]
    print_result(as_json, {"run": folder.run, "members": members}, lines)


@click.command()
@member_argument
@model_options
@running_run_option
@reason_option
@json_option
def swap(name: str, api: dict[str, Any], run: str | None, reason: str, as_json: bool) -> int:
    """Replace a member's model from the next step on, if the new model answers a test question with a verdict. The
    member keeps its name, role, weight and metrics. Its tests with known answers start over.

    Example: oven-controller judge swap critic --provider claude --model claude-haiku-4-5
    """
    folder = Home().find(run, running=True)
    settings = _read_settings(folder)
    _check_member(folder, name)
    try:
        judge = JudgeSpec.model_validate(api)
    except ValidationError as error:
        raise ConfigError(f"these settings of the judge are invalid: {error_text(error)}") from None
    check_judge(settings, name, judge)
    access, actuator = LocalRun(folder), actuator_of(name)
    offer = new_command("offer", actuator=actuator, judge=judge, reason=reason)
    offer_result = asyncio.run(execute_command(access, offer, settings.deadline_s + TEST_MARGIN_S))
    set_result = None
    if not offer_result.code:
        choice = new_command("set", actuator=actuator, value=judge.identity, reason=reason)
        set_result = asyncio.run(execute_command(access, choice))
    result = set_result or offer_result
    receipt = offer_result.receipt
    line = result.line()
    if set_result is None and receipt is not None:
        line = f"swap {receipt.status}: {receipt.after} stays ({receipt.reason})"
    set_fields = set_result.fields() if set_result is not None else None
    print_result(as_json, {"code": result.code, "offered": offer_result.fields(), "chosen": set_fields}, [line])
    return result.code


@click.command()
@member_argument
@running_run_option
@reason_option
@json_option
def mute(name: str, run: str | None, reason: str, as_json: bool) -> int:
    """Stop calling a member. The others share its weight until you `swap` it or `set committee.NAME MODEL`.

    Example: oven-controller judge mute style --reason "it rewards length"
    """
    folder = Home().find(run, running=True)
    _check_member(folder, name)
    return _send(folder, as_json, None, action="set", actuator=f"committee.{name}", value=OFF, reason=reason)


@click.command()
@argument("name", help="The new member's name.")
@model_options
@click.option("--role", default="critic", help="critic, adversary, specialist or style.")
@click.option("--weight", type=float, show_default="an equal share", help="Its share of the total weight, 0 to 1.")
@click.option("--domain", default="", show_default=False, help="A specialist's field.")
@click.option(
    "--rubric", default="", show_default=False, help="A text file with instructions to use instead of the role's."
)
@running_run_option
@reason_option
@json_option
def add(
    name: str,
    api: dict[str, Any],
    role: str,
    weight: float | None,
    domain: str,
    rubric: str,
    run: str | None,
    reason: str,
    as_json: bool,
) -> int:
    """Start a new member in the running stack. The member is removed again if it does not answer a test question.
    Otherwise it stays in the committee when the run is resumed.

    Example: oven-controller judge add tone --provider grok --model grok-3 --role style --weight 0.1
    """
    from oven_controller.stack.agent_keys import admit_member

    folder = Home().find(run, running=True)
    settings, view = _read_settings(folder), _read_view(folder)
    names.validate("member", name)
    if name in settings.members or name in view.weights or name in view.members:
        raise ConfigError(f"{name!r} is already a member of {folder.run}; choose another name, or `judge swap {name}`")
    equal_share = 1 / (max(len(view.weights), 1) + 1)  # below 1 even if no weights are known yet
    share = equal_share if weight is None else weight
    if not 0 < share < 1:
        raise ConfigError(
            f"--weight {share:g} is not between 0 and 1; give the new member's share of the total weight, e.g. 0.1"
        )
    member = new_member(settings, name, role=role, domain=domain, rubric=rubric, **api)
    admit_member(folder, name)
    folder.change_settings(lambda saved: saved["committee"]["members"].update({name: member.model_dump()}))
    command = {"action": "add", "actuator": f"committee.{name}", "judge": judge_of(member), "value": share}
    code = 1
    try:
        code = _send(folder, as_json, JOIN_TIMEOUT_S + settings.deadline_s + TEST_MARGIN_S, **command, reason=reason)
    finally:
        if code == 1:  # the learner refused the member, which also ends its process, or the command was not sent
            _remove_settings(folder, name)
    return code


@click.command()
@member_argument
@running_run_option
@reason_option
@json_option
def remove(name: str, run: str | None, reason: str, as_json: bool) -> int:
    """Remove a member: its process ends, the others share its weight, and the quorum no longer counts it.

    Example: oven-controller judge remove tone
    """
    folder = Home().find(run, running=True)
    _check_member(folder, name)
    code = _send(folder, as_json, None, action="remove", actuator=f"committee.{name}", reason=reason)
    if code == 0:
        _remove_settings(folder, name)
    return code


def _check_member(folder: RunFolder, name: str) -> None:
    """Check the member's name. Raises UnknownNameError if the committee has no such member."""
    members = _read_view(folder).members
    if name not in members:
        raise UnknownNameError("committee member", name, members)


def _send(folder: RunFolder, as_json: bool, limit_s: float | None, **fields: Any) -> int:
    """Send a command, print its outcome, and return the exit code."""
    result = asyncio.run(execute_command(LocalRun(folder), new_command(**fields), limit_s))
    print_result(as_json, result.fields(), [result.line()])
    return result.code


def _remove_settings(folder: RunFolder, name: str) -> None:
    """Remove a member from the settings, and revoke its key."""
    from oven_controller.stack.agent_keys import revoke

    folder.change_settings(lambda saved: saved["committee"]["members"].pop(name, None))
    if folder.info().embedded:
        with contextlib.suppress(OvenError):  # the process ends even if its key stays valid
            revoke(folder, name)


def _read_settings(folder: RunFolder) -> CommitteeSettings:
    return CommitteeSettings.model_validate(folder.earlier_settings().get("committee", {}))


def _read_view(folder: RunFolder) -> CommitteeView:
    async def read() -> CommitteeView:
        view = CommitteeView()
        async for event in LocalRun(folder).events():
            view.feed(event)
        return view

    return asyncio.run(read())
