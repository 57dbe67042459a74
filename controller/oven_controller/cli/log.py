"""The `log` command: print a run's log or its sampled completions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import click

from oven_controller.cli.options import DEFAULT_RUN, exit_if_incomplete, json_option, remote_options, run_argument
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.terminal_text import clean, say
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import find_run

if TYPE_CHECKING:
    from oven_core.protocol.completion_messages import StoredGroup

DEFAULT_GROUPS = 10
"""Default number of groups that --completions prints. A group is a prompt with its sampled completions."""


@click.command()
@run_argument(DEFAULT_RUN)
@json_option
@click.option("--follow", "-f", is_flag=True, help="Continue with new events until the stack is down.")
@click.option(
    "--completions",
    is_flag=True,
    help="Print sampled prompts, completions and scores instead. They are not in the log.",
)
@click.option(
    "--last",
    type=click.IntRange(1, 2000),
    help="Only this many of the newest events, or of the newest groups with --completions.",
)
@remote_options
def log(run: str | None, as_json: bool, follow: bool, completions: bool, last: int | None, endpoint: Endpoint) -> None:
    """Print a run's log, one event per line, whether its stack is up or down.

    Exit code 3 if the log is known to lack messages from the learner.

    Example: oven-controller log grpo-1121-0231 --json | grep Decision
    """
    access = find_run(run, endpoint)
    if completions:
        asyncio.run(print_completions(access, last=last or DEFAULT_GROUPS, as_json=as_json, follow=follow))
        return
    asyncio.run(_print_log(access, as_json, follow, last))


async def _print_log(access: RunAccess, as_json: bool, follow: bool, last: int | None) -> None:
    last_seq = 0
    if last is not None:
        newest_events = await access.newest(last)
        _print_events(newest_events, as_json)
        last_seq = newest_events[-1].seq if newest_events else 0
    if follow and access.is_up():
        async for event in access.follow():
            if event.seq > last_seq:
                _print_event(event, as_json, flush=True)
        return
    if last is not None:
        exit_if_incomplete(access)
        return
    pending_events: list[Event] = []
    has_started = False
    # If another version wrote the log, reading fails at RunStarted, so nothing is printed before that message.
    async for event in access.events():
        pending_events.append(event)
        has_started |= isinstance(event.body, RunStarted)
        if has_started:
            _print_events(pending_events, as_json)
            pending_events.clear()
    _print_events(pending_events, as_json)
    exit_if_incomplete(access)


def _print_events(events: list[Event], as_json: bool) -> None:
    for event in events:
        _print_event(event, as_json)


def _print_event(event: Event, as_json: bool, flush: bool = False) -> None:
    print(event.line() if as_json else format_event(event), flush=flush)


def format_event(event: Event) -> str:
    """Format an event as one line: sequence number, time, type, author if any, and non-default fields."""
    body = event.body
    if isinstance(body, Malformed):
        return clean(f"{event.seq:>6} {event.time:%H:%M:%S} Malformed on {event.subject}: {body.reason}")
    hidden_fields = {"v", "type", "incarnation", "n", "tally", "rules"}
    fields = body.model_dump(mode="json", exclude_defaults=True, exclude=hidden_fields)
    has_author = event.subject.count(".") > 2  # oven.RUN.KIND.AUTHOR
    author = f" {event.author}" if has_author else ""
    values = "  ".join(f"{key}={_shorten(value)}" for key, value in fields.items())
    return clean(f"{event.seq:>6} {event.time:%H:%M:%S} {body.type}{author}  {values}")


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:159] + "…"


async def print_completions(access: RunAccess, *, last: int, as_json: bool, follow: bool) -> None:
    """Print the newest sampled groups. With `follow`, print new ones until the stack is down. Raises OvenError."""
    from oven_runs.access.completion_reader import follow_groups, newest_groups

    if not follow or not access.is_up():
        _print_groups(await newest_groups(access, last), as_json)
        return
    async with contextlib.aclosing(follow_groups(access, last)) as batches:
        async for groups in batches:
            _print_groups(groups, as_json)


def _print_groups(groups: list[StoredGroup], as_json: bool) -> None:
    from oven_runs.log.sampled_group_text import group_lines

    for group in groups:
        if as_json:  # in ASCII, because strings may contain terminal control sequences
            print(json.dumps(json.loads(group.model_dump_json())), flush=True)
        else:
            say(*group_lines(group), "", flush=True)
