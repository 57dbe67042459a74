"""`judge list | swap | mute`: who scores in a running reward committee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.operator import LOGGED_S, Reason
from oven_controller.cli.options import Json, LiveRunOption, RunOption

if TYPE_CHECKING:
    from oven_controller.log.committee_view import CommitteeView
    from oven_controller.runs.folder import RunFolder
    from oven_controller.settings.model import CommitteeSettings

app = typer.Typer(
    no_args_is_help=True,
    help="The judges of a run's reward committee: list them, and swap them while it trains.\n\n"
    "Example: oven-controller judge list",
)

Member = Annotated[str, typer.Argument(metavar="NAME", help="The committee member.", autocompletion=completion.judges)]
Provider = Annotated[str, typer.Option(help="Whose API it speaks, as in committee.members.NAME.")]
Model = Annotated[str, typer.Option(help="The model's name there.")]
BaseUrl = Annotated[str, typer.Option(help="Address of the API.", show_default="the provider's own")]
KeyEnv = Annotated[
    str,
    typer.Option(
        help="Environment variable with the key, in the member's process: the key itself is never sent.",
        show_default="the provider's usual one",
    ),
]
Logprobs = Annotated[bool, typer.Option("--logprobs", help="Ask for its tokens' log-probabilities.")]
TopLogprobs = Annotated[int, typer.Option(help="Alternatives per token, with --logprobs: 1 to 20.")]


@app.command("list")
def list_judges(run: RunOption = None, as_json: Json = False) -> None:
    """List the remote members: which model judges, its role and weight, and whether it scores or why not.

    Example: oven-controller judge list --json
    """
    import json

    from oven_controller.log.committee_view import fields
    from oven_controller.runs.folder import Home
    from oven_controller.terminal_text import say

    folder = Home().find(run)
    roles = {name: member.role for name, member in _settings(folder).judges.items()}
    lines = _view(folder).lines(roles)
    if as_json:
        print(json.dumps({"run": folder.run, "members": fields(lines)}))
        return
    if not lines:
        say(f"{folder.run} has no remote committee members; committee.members configures them")
    for line in lines:
        weight = "" if line.weight is None else f"{line.weight:.3g}"
        say(f"{line.member:<16} {line.role:<12} {weight:>6}  {line.judge}  ({line.state})")


@app.command("swap")
def swap(
    name: Member,
    provider: Provider,
    model: Model,
    base_url: BaseUrl = "",
    key_env: KeyEnv = "",
    logprobs: Logprobs = False,
    top_logprobs: TopLogprobs = 5,
    run: LiveRunOption = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Have another model judge as this member, from the next step on. It is asked a question first; if it gives no
    verdict, the one before stays. The member's name, role, weight and metrics stay; its controls start anew.

    Example: oven-controller judge swap critic --provider claude --model claude-haiku-4-5
    """
    import asyncio
    import json

    from pydantic import ValidationError

    from oven_controller.errors import ConfigError, UnknownNameError
    from oven_controller.protocol.judge_spec import JudgeSpec
    from oven_controller.runs.folder import Home
    from oven_controller.runs.judge_commands import swapped
    from oven_controller.settings.judges import check_judge, first_problem
    from oven_controller.terminal_text import say

    folder = Home().find(run, running=True)
    settings, known = _settings(folder), _view(folder).members
    if name not in known:
        raise UnknownNameError("committee member", name, known)
    try:
        judge = JudgeSpec(
            provider=provider,
            model=model,
            base_url=base_url,
            key_env=key_env,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )
    except ValidationError as error:
        raise ConfigError(f"the judge cannot be asked: {first_problem(error)}") from None
    check_judge(settings, name, judge)  # what cannot be asked is not sent
    found = asyncio.run(swapped(folder, name, judge, settings.deadline_s, reason))
    say(json.dumps(found.fields()) if as_json else found.line())
    if found.code:
        raise typer.Exit(found.code)


@app.command("mute")
def mute(name: Member, run: LiveRunOption = None, reason: Reason = "", as_json: Json = False) -> None:
    """Stop asking this member; its weight counts for the others meanwhile. `swap` it, or `set committee.NAME MODEL`, to
    have it back.

    Example: oven-controller judge mute style --reason "it marks length"
    """
    import asyncio
    import json
    import uuid

    from oven_controller.errors import UnknownNameError
    from oven_controller.protocol.judge_spec import OFF, actuator_of
    from oven_controller.protocol.operator_messages import OperatorCommand
    from oven_controller.runs.folder import Home
    from oven_controller.runs.operator_client import carried_out
    from oven_controller.terminal_text import say

    folder = Home().find(run, running=True)
    known = _view(folder).members
    if name not in known:
        raise UnknownNameError("committee member", name, known)
    command = OperatorCommand(id=uuid.uuid4().hex, action="set", actuator=actuator_of(name), value=OFF, reason=reason)
    result = asyncio.run(carried_out(folder, command, LOGGED_S))
    say(json.dumps(result.fields()) if as_json else result.line())
    if result.code:
        raise typer.Exit(result.code)


def _settings(folder: RunFolder) -> CommitteeSettings:
    from oven_controller.settings.model import CommitteeSettings

    return CommitteeSettings.model_validate(folder.earlier_settings().get("committee", {}))


def _view(folder: RunFolder) -> CommitteeView:
    import asyncio

    from oven_controller.log.committee_view import CommitteeView
    from oven_controller.runs import log_reader

    view = CommitteeView()

    async def look() -> None:
        async for event in log_reader.events(folder):
            view.feed(event)

    asyncio.run(look())
    return view
