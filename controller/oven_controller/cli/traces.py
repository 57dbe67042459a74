"""`traces …`: what a policy did at each step, what teachers would have done, and the pairs that follow.

What needs a model or the agents' side is an entry point of oven.commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oven_controller.traces.formats.trace_format import TraceFormat
    from oven_controller.traces.records import Trace

app = typer.Typer(
    no_args_is_help=True,
    help="Record what a policy did, ask teachers at its own steps, and make preference pairs of it.\n\n"
    "Example: oven-controller traces check traces.jsonl",
)

Source = Annotated[Path, typer.Argument(metavar="FILE", help="Traces in any format that is known, a file or a folder.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help="Its format.", show_default="recognised by its first line"),
]


@app.command("convert")
def convert(
    source: Source,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File or folder to write.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="The target's format.")] = "oven",
    from_: From = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that hold no trace.")] = False,
    as_json: Json = False,
) -> None:
    """Write traces in another format, and say what that loses.

    What a format has no place for is kept in its free field where it has one, so that ours comes back whole.

    Example: oven-controller traces convert results.jsonl traces.jsonl
    """
    from oven_controller.errors import NO_ROOM, ConfigError, reason
    from oven_controller.terminal_text import say
    from oven_controller.traces.formats.trace_format import named
    from oven_controller.traces.jsonl import BadLine, refusal

    written, (name, read) = named(to), _source(source, from_)
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
        return
    left_out = f"; {len(skipped)} bad lines were left out" if skipped else ""
    say(f"{count} traces from {name} to {to}: {target}{left_out}")
    for what, why in losses.items():
        say(f"  lost: {what}: {why}")


@app.command("check")
def check(source: Source, from_: From = None, as_json: Json = False) -> None:
    """Count, by kind, every step without a whole state, action and reward. Exit code 1: there are some.

    Example: oven-controller traces check traces.jsonl --json
    """
    from oven_controller.terminal_text import say
    from oven_controller.traces import completeness

    name, read = _source(source, from_)
    found = completeness.check(read.read(source))
    if as_json:
        print(json.dumps({"format": name, **found.plain()}))
    else:
        say(f"{source}: {name}, {found.traces} traces, {found.steps} steps")
        say(f"  whole: {found.whole_traces} traces, {found.whole_steps} steps")
        say("  ended: " + (", ".join(f"{kind} {count}" for kind, count in found.ended.most_common()) or "none"))
        for what, counts in (
            ("lines", found.bad_lines),
            ("traces", found.traces_lacking),
            ("steps", found.steps_lacking),
        ):
            for kind, count in counts.most_common():
                say(f"  {count} {what}: {kind.replace('_', ' ')} (e.g. {'; '.join(found.examples[kind])})")
    raise typer.Exit(0 if found.whole else 1)


@app.command("show")
def show(
    source: Source,
    trace: Annotated[
        str | None, typer.Argument(metavar="TRACE", help="Its id.", show_default="list all of them")
    ] = None,
    from_: From = None,
    whole: Annotated[bool, typer.Option("--whole", help="Every line of each message.")] = False,
    as_json: Json = False,
) -> None:
    """List the traces of a file, or show one step by step.

    Example: oven-controller traces show traces.jsonl repair-17
    """
    from oven_controller.errors import UnknownNameError
    from oven_controller.terminal_text import say
    from oven_controller.traces.jsonl import BadLine, line, refusal
    from oven_controller.traces.transcript import listed, transcript

    _, read = _source(source, from_)
    known: list[str] = []
    for one in read.read(source):
        if isinstance(one, BadLine):
            typer.echo(f"left out: {refusal(source, one)}", err=True)
            continue
        known.append(one.id)
        if trace is not None and one.id != trace:
            continue
        if as_json:
            print(line(one).decode(), end="")
        else:
            say(*([listed(one)] if trace is None else transcript(one, whole=whole)))
        if trace is not None:
            return
    if trace is not None:
        raise UnknownNameError("trace", trace, known)


def _source(source: Path, format: str | None) -> tuple[str, TraceFormat]:
    """Raises ConfigError and UnknownNameError."""
    from oven_controller.traces.formats.trace_format import named, recognised

    return recognised(source) if format is None else (format, named(format))
