"""The commands `traces convert`, `traces check` and `traces show`, which work on trace files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from oven_controller.cli.options import PATH, argument, json_option
from oven_core.errors import NO_SPACE, ConfigError, UnknownNameError, reason
from oven_core.terminal_text import clean, counted, say, wrapped
from oven_runs.traces import completeness
from oven_runs.traces.formats.format_lookup import format_named, format_of
from oven_runs.traces.jsonl import BadLine, bad_line_error, to_line
from oven_runs.traces.trace_records import Message, Trace

MAX_MESSAGE_LINES = 12
"""Maximum number of lines to show of each message without --whole."""
source_argument = argument("source", type=PATH, metavar="FILE", help="Traces in any known format: a file or a folder.")
from_option = click.option(
    "--from", "from_", metavar="FORMAT", show_default="detected from its first line", help="Format of the file."
)


@click.command()
@source_argument
@argument("target", type=PATH, help="File or folder to write.")
@click.option("--to", default="oven", metavar="FORMAT", help="Format of the target.")
@from_option
@click.option("--skip-bad", is_flag=True, help="Skip lines that are not valid traces.")
@json_option
def convert(source: Path, target: Path, to: str, from_: str | None, skip_bad: bool, as_json: bool) -> int:
    """Convert traces to another format, and list what is lost in that format.

    Example: oven-controller traces convert results.jsonl traces.jsonl --to oven
    """
    target_format = format_named(to)
    name, source_format = format_of(source, from_)
    if target.absolute() == source.absolute():
        raise ConfigError(f"{target} is also the source; choose another target")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {target.absolute().parent}; create it, or choose another target")
    skipped: list[BadLine] = []

    def traces() -> Iterator[Trace]:
        for trace in source_format.read(source):
            if not isinstance(trace, BadLine):
                yield trace
            elif skip_bad:
                skipped.append(trace)
            else:
                raise ConfigError(f"{bad_line_error(source, trace)}; or skip bad lines with --skip-bad")

    try:
        count = target_format.write(target, traces())
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise ConfigError(f"cannot write {target}: {reason(error)}") from error
    losses = dict(target_format.loses)
    if as_json:
        print(json.dumps({"from": name, "to": to, "traces": count, "skipped": len(skipped), "loses": losses}))
        return 0
    skipped_text = f"; bad lines skipped: {len(skipped)}" if skipped else ""
    say(f"{target}: {count} traces, from {name} to {to}{skipped_text}")
    for lost_part, explanation in losses.items():
        say(f"  lost: {lost_part}: {explanation}")
    return 0


@click.command()
@source_argument
@from_option
@json_option
def check(source: Path, from_: str | None, as_json: bool) -> int:
    """Count, by kind, the steps that lack a state, an action or a reward. Exit code 1 if there are any.

    Example: oven-controller traces check traces.jsonl --json
    """
    name, source_format = format_of(source, from_)
    counts = completeness.check(source_format.read(source))
    if as_json:
        print(json.dumps({"format": name, **counts.as_json()}))
        return 0 if counts.is_whole else 1
    traces, steps = f"{counts.whole_traces} of {counts.traces} traces", f"{counts.whole_steps} of {counts.steps} steps"
    say(f"{source}: {name}; complete: {traces}, {steps}")
    if counts.ended:
        say("  ended: " + ", ".join(f"{kind} {count}" for kind, count in counts.ended.most_common()))
    problems = (
        ("lines", counts.bad_lines),
        ("traces", counts.traces_lacking),
        ("steps", counts.steps_lacking),
        ("complete, but with an unusable action", counts.unusable_actions),
    )
    for problem, kinds in problems:
        for kind, count in kinds.most_common():
            say(f"  {problem}: {count:,}: {kind.replace('_', ' ')} (e.g. {'; '.join(counts.examples[kind])})")
    return 0 if counts.is_whole else 1


@click.command()
@source_argument
@argument("trace", required=False, help="Id of the trace.  [default: list all traces]")
@from_option
@click.option("--whole", is_flag=True, help="Show every line of each message.")
@json_option
def show(source: Path, trace: str | None, from_: str | None, whole: bool, as_json: bool) -> int:
    """List the traces of a file, or show one trace step by step.

    Example: oven-controller traces show traces.jsonl repair-17
    """
    ids: list[str] = []
    _, source_format = format_of(source, from_)
    for item in source_format.read(source):
        if isinstance(item, BadLine):
            print(f"skipped: {bad_line_error(source, item)}", file=sys.stderr)
            continue
        ids.append(item.id)
        if trace is not None and item.id != trace:
            continue
        if as_json:
            print(to_line(item).decode(), end="")
        elif trace is None:
            say(_summarize(item))
        else:
            say(*_transcript(item, whole=whole))
        if trace is not None:
            return 0
    if trace is not None:
        raise UnknownNameError("trace", trace, ids)
    return 0


def _summarize(trace: Trace) -> str:
    """Summarise the trace in one line."""
    reward = "no reward" if trace.reward is None else f"reward {trace.reward:g}"
    solved = {True: "solved", False: "not solved", None: "not known whether solved"}[trace.solved]
    steps = counted(len(trace.steps), "step")
    return clean(f"{trace.id}  {steps}  {reward}  {solved}  {trace.ended}  {trace.task.id}")


def _transcript(trace: Trace, *, whole: bool = False) -> Iterator[str]:
    """Yield the prompt, then each step's action, result and reward. `whole` includes every line of each message."""
    yield _summarize(trace)
    policy = trace.policy
    if policy.model:
        yield clean(f"policy {policy.model}" + (f" at step {policy.step}" if policy.step is not None else ""))
    if trace.tools:
        yield from wrapped("tools " + ", ".join(tool.name for tool in trace.tools))
    yield from _conversation_lines(trace.prompt, whole)
    for number, step in enumerate(trace.steps):
        yield ""
        if step.state is not None:
            yield f"  (before step {number} the context was rewritten to {len(step.state)} messages)"
        reward = "" if step.reward is None else f"  reward {step.reward:+g}"
        yield f"step {number}{reward}"
        if step.action.content.strip() or not step.action.calls:
            yield from _message_lines("says", step.action.content, whole)
        for call in step.action.calls:
            yield from _message_lines("does", f"{call.name}({call.arguments})", whole)
        if step.result is None:
            yield "  (its result was not recorded)"
        yield from _conversation_lines(step.result or (), whole)


def _conversation_lines(messages: tuple[Message, ...], whole: bool) -> Iterator[str]:
    for message in messages:
        yield from _message_lines(f"{message.role} {message.name}".strip(), message.content, whole)


def _message_lines(speaker: str, text: str, whole: bool) -> Iterator[str]:
    lines = text.splitlines() or [""]
    shown_lines = lines if whole else lines[:MAX_MESSAGE_LINES]
    yield f"  {clean(speaker)}: {clean(shown_lines[0])}"
    yield from (f"    {clean(line)}" for line in shown_lines[1:])
    if len(lines) > len(shown_lines):
        yield f"    ({len(lines) - len(shown_lines):,} more lines; use --whole to see them)"
