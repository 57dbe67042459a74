"""`decisions`: a run's decisions, a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import HERE, Json, RunName, SameRun, from_anywhere, one_run
from oven_runs.access.endpoint import Endpoint
from oven_runs.log.since import FORMS

if TYPE_CHECKING:
    from oven_runs.access.run_access import RunAccess
    from oven_runs.log.decision_row import DecisionFilter
    from oven_runs.log.explanation import Explanations


@from_anywhere
def decisions(
    run: RunName = None,
    run_: SameRun = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="STEP|TIME", help=f"Only those from there on: {FORMS} before the log's newest event."),
    ] = None,
    actuator: Annotated[
        str, typer.Option(metavar="NAME", help="Only those on this actuator.", autocompletion=completion.knobs)
    ] = "",
    agent: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Only those that this agent voted on, or that this person asked for.",
            autocompletion=completion.agents,
        ),
    ] = "",
    verdict: Annotated[
        str,
        typer.Option(
            metavar="VERDICT",
            help="Only these: adopted, rejected or advised.",
            autocompletion=completion.verdicts,
        ),
    ] = "",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Continue until the stack is down: a row again when its receipt or outcome comes."
        ),
    ] = False,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """List a run's decisions: step, who, what, verdict, what was read back, and the effect. With --json an object per
    line.

    Example: oven-controller decisions --since 30m --verdict adopted
    """
    import asyncio

    from oven_core.errors import UnknownNameError
    from oven_runs.access.run_finder import find_run
    from oven_runs.log.decision_row import VERDICTS, DecisionFilter
    from oven_runs.log.since import Since

    if verdict and verdict not in VERDICTS:
        raise UnknownNameError("verdict", verdict, VERDICTS)
    wanted = DecisionFilter(Since.read(since), actuator, agent, verdict)
    asyncio.run(_print(find_run(one_run(run, run_), at), wanted, follow, as_json))


async def _print(access: RunAccess, wanted: DecisionFilter, follow: bool, as_json: bool) -> None:
    from oven_runs.log.decision_row import HEAD
    from oven_runs.log.explanation import Explanations

    seen, last = Explanations(), 0
    async for event in access.events():
        seen.feed(event)
        last = event.seq
    if not follow:  # what is not known yet may still come
        wanted.check(seen.by_id.values())
    shown = [id_ for id_, one in seen.by_id.items() if wanted.matches(one, seen.newest)]
    if not as_json:
        of = f"none of the {len(seen.by_id)} decisions is such a one" if seen.by_id else "no decisions yet"
        print(HEAD if shown or follow else of)
    for id_ in shown:
        _show(seen, id_, wanted, as_json)
    if not follow:
        return
    async for event in access.follow():
        if event.seq > last:
            seen.feed(event)
            if seen.changed:
                _show(seen, seen.changed, wanted, as_json)


def _show(seen: Explanations, id_: str, wanted: DecisionFilter, as_json: bool) -> None:
    from oven_core.terminal_text import say
    from oven_runs.log.decision_row import line, row

    if wanted.matches(seen.by_id[id_], seen.newest):
        found = row(seen.whole(id_))
        if as_json:
            print(found.model_dump_json(ensure_ascii=True), flush=True)
        else:
            say(line(found), flush=True)
