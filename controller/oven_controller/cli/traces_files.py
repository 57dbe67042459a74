"""`traces convert | check | show`: what can be done with a file of traces alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from oven_controller.cli.options import Json
from oven_controller.cli.traces_source import From, Source, source_format
from oven_core.errors import NO_ROOM, ConfigError, UnknownNameError, reason
from oven_core.terminal_text import say
from oven_runs.traces import completeness, jsonl
from oven_runs.traces.formats.trace_format import named
from oven_runs.traces.jsonl import BadLine, line, refusal
from oven_runs.traces.records import Reply, Trace
from oven_runs.traces.transcript import listed, transcript


def convert(
    source: Source,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File or folder to write.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="The target's format.")] = "oven",
    from_: From = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that hold no trace.")] = False,
    as_json: Json = False,
) -> int:
    """Write traces in another format, and list what that format loses.

    Example: oven-controller traces convert results.jsonl traces.jsonl --to oven
    """
    written, (name, read) = named(to), source_format(source, from_)
    if target.absolute() == source.absolute():
        raise ConfigError(f"{target} is the source, too; name another target")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {target.absolute().parent}; make it, or name another target")
    skipped: list[BadLine] = []

    def traces() -> Iterator[Trace]:
        for one in read.read(source):
            if not isinstance(one, BadLine):
                yield one
            elif skip_bad:
                skipped.append(one)
            else:
                raise ConfigError(f"{refusal(source, one)}; or leave such lines out with --skip-bad")

    try:
        count = written.write(target, traces())
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise ConfigError(f"{target} cannot be written: {reason(error)}") from error
    losses = dict(written.loses)
    if as_json:
        print(json.dumps({"from": name, "to": to, "traces": count, "skipped": len(skipped), "loses": losses}))
        return 0
    left_out = f"; bad lines left out: {len(skipped)}" if skipped else ""
    say(f"{target}: traces: {count}, from {name} to {to}{left_out}")
    for what, why in losses.items():
        say(f"  lost: {what}: {why}")
    return 0


def check(source: Source, from_: From = None, as_json: Json = False) -> int:
    """Count, by kind, the steps that lack a state, an action or a reward. Exit code 1 if there are any.

    Example: oven-controller traces check traces.jsonl --json
    """
    name, read = source_format(source, from_)
    found = completeness.check(read.read(source))
    if as_json:
        print(json.dumps({"format": name, **found.plain()}))
        return 0 if found.whole else 1
    traces, steps = f"{found.whole_traces} of {found.traces} traces", f"{found.whole_steps} of {found.steps} steps"
    say(f"{source}: {name}; whole: {traces}, {steps}")
    if found.ended:
        say("  ended: " + ", ".join(f"{kind} {count}" for kind, count in found.ended.most_common()))
    counted = (
        ("lines", found.bad_lines),
        ("traces", found.traces_lacking),
        ("steps", found.steps_lacking),
        ("whole, but with an action that cannot be compared", found.unusable),
    )
    for what, counts in counted:
        for kind, count in counts.most_common():
            say(f"  {what}: {count:,}: {kind.replace('_', ' ')} (e.g. {'; '.join(found.examples[kind])})")
    return 0 if found.whole else 1


def show(
    source: Source,
    trace: Annotated[
        str | None, typer.Argument(metavar="TRACE", help="Its id.", show_default="list all of them")
    ] = None,
    replies: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With TRACE: also what teachers would have done.")
    ] = None,
    from_: From = None,
    whole: Annotated[bool, typer.Option("--whole", help="Every line of each message.")] = False,
    as_json: Json = False,
) -> int:
    """List the traces of a file, or show one trace step by step.

    Example: oven-controller traces show traces.jsonl repair-17
    """
    if replies is not None and (trace is None or as_json):
        raise ConfigError("--replies is for a trace that is shown as text: name one, without --json")
    asked: dict[int, list[Reply]] = {}
    for reply in jsonl.read(replies, Reply, cut=True) if replies is not None else ():
        if reply.trace == trace:
            asked.setdefault(reply.step, []).append(reply)
    known: list[str] = []
    for one in source_format(source, from_)[1].read(source):
        if isinstance(one, BadLine):
            print(f"left out: {refusal(source, one)}", file=sys.stderr)
            continue
        known.append(one.id)
        if trace is not None and one.id != trace:
            continue
        if as_json:
            print(line(one).decode(), end="")
        else:
            say(*([listed(one)] if trace is None else transcript(one, asked, whole=whole)))
        if trace is not None:
            return 0
    if trace is not None:
        raise UnknownNameError("trace", trace, known)
    return 0
