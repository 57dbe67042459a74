"""The `log` command: print a run's log or its sampled completions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Annotated

import typer

from oven_controller.cli.options import HERE, Json, RunName, SameRun, exit_if_incomplete, from_anywhere, one_run
from oven_core.protocol.codec import Malformed
from oven_core.protocol.completion_messages import StoredGroup
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.terminal_text import clean, say
from oven_runs.access.completion_reader import follow_groups, newest_groups
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import find_run
from oven_runs.log.sampled_text import group_lines

LAST_GROUPS = 10
"""Default number of groups that --completions prints."""


@from_anywhere
def log(
    run: RunName = None,
    run_: SameRun = None,
    as_json: Json = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new events until the stack is down.")
    ] = False,
    completions: Annotated[
        bool,
        typer.Option(
            "--completions", help="Print sampled prompts, completions and scores instead. They are not in the log."
        ),
    ] = False,
    last: Annotated[
        int | None,
        typer.Option(
            min=1, max=2000, help="Only this many of the newest events, or of the newest groups with --completions."
        ),
    ] = None,
    endpoint: Endpoint = HERE,
) -> None:
    """Print a run's log, one event per line, whether its stack is up or down.

    Exit code 3 if the log is known to lack messages of the learner.

    Example: oven-controller log grpo-1121-0231 --json | grep Decision
    """
    access = find_run(one_run(run, run_), endpoint)
    if completions:
        asyncio.run(print_completions(access, last=last or LAST_GROUPS, as_json=as_json, follow=follow))
        return
    asyncio.run(_print(access, as_json, follow, last))


async def _print(access: RunAccess, as_json: bool, follow: bool, last: int | None) -> None:
    last_seq = 0
    if last is not None:
        for event in await access.newest(last):
            _print_event(event, as_json)
            last_seq = event.seq
    if follow and access.is_up():
        async for event in access.follow():
            if event.seq > last_seq:
                _print_event(event, as_json, flush=True)
        return
    if last is not None:
        exit_if_incomplete(access)
        return
    pending, started = list[Event](), False  # an earlier version's log is refused at its RunStarted: print nothing then
    async for event in access.events():
        pending.append(event)
        started |= isinstance(event.body, RunStarted)
        while started and pending:
            _print_event(pending.pop(0), as_json)
    for event in pending:
        _print_event(event, as_json)
    exit_if_incomplete(access)


def _print_event(event: Event, as_json: bool, flush: bool = False) -> None:
    print(event.line() if as_json else readable(event), flush=flush)


def readable(event: Event) -> str:
    """Format an event as one line: sequence, time, type, author if the subject names one, and non-default fields."""
    body = event.body
    if isinstance(body, Malformed):
        return clean(f"{event.seq:>6} {event.time:%H:%M:%S} Malformed on {event.subject}: {body.reason}")
    fields = body.model_dump(
        mode="json", exclude_defaults=True, exclude={"v", "type", "incarnation", "n", "tally", "rules"}
    )
    author = f" {event.author}" if event.subject.count(".") > 2 else ""
    values = "  ".join(f"{key}={_short(value)}" for key, value in fields.items())
    return clean(f"{event.seq:>6} {event.time:%H:%M:%S} {body.type}{author}  {values}")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:159] + "…"


async def print_completions(access: RunAccess, *, last: int, as_json: bool, follow: bool) -> None:
    """Print the newest sampled groups. With `follow`, print new ones until the stack is down. Raises OvenError."""
    if not follow or not access.is_up():
        _print_groups(await newest_groups(access, last), as_json)
        return
    async with contextlib.aclosing(follow_groups(access, last)) as batches:
        async for groups in batches:
            _print_groups(groups, as_json)


def _print_groups(groups: list[StoredGroup], as_json: bool) -> None:
    for group in groups:
        if as_json:  # in ASCII, because texts may contain control sequences for the terminal
            print(json.dumps(json.loads(group.model_dump_json())), flush=True)
        else:
            say(*group_lines(group), "", flush=True)
