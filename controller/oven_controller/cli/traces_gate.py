"""`oven-controller traces gate`: what asking fewer teachers would have cost and yielded, from a recorded replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from oven_controller.cli.options import Json
from oven_controller.cli.traces_options import From, Replies, SkipBad, Source
from oven_controller.cli.traces_pairs import read_replies
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.terminal_text import say
from oven_llm.trace_replay.gate import GATES, NOTHING, Curve, RecordedReplay, Tiers, cheapest, curve, replayed, tiers
from oven_runs.traces.formats.table import read_traces

SHARES = range(20, 100, 20)
"""Shares of the cost, in percent, that the table shows."""


def gate(
    source: Source,
    replies: Replies,
    cheap: Annotated[
        list[str] | None,
        typer.Option(
            "--cheap", metavar="TEACHER", help="Teacher to ask first; repeatable.", show_default="the cheapest"
        ),
    ] = None,
    from_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Show, from a recorded replay, which states to ask about and which teachers to ask first: the share of the cost
    against the share of the pairs.

    Example: oven-controller traces gate traces.jsonl replies.jsonl --cheap small
    """
    replay = replayed(read_traces(source, from_, skip_bad=skip_bad), read_replies(replies, ()))
    for name in cheap or ():
        if name not in replay.teachers:
            raise UnknownNameError("teacher", name, replay.teachers)
    if not replay.states:
        raise ConfigError(
            f"{replies}: no state of {source} has replies of all of {', '.join(replay.teachers)}, which gates are "
            "judged on: finish the replay"
        )
    curves = {name: curve(replay, name) for name in GATES}
    cheapest_teacher = cheapest(replay)
    first_teachers = cheap or ([] if cheapest_teacher is None else [cheapest_teacher])
    tiered = tiers(replay, first_teachers) if first_teachers else None
    if as_json:
        print(json.dumps(report(replay, curves, tiered)))
    else:
        say(*_lines(replay, curves, tiered))
    return 0 if any(isinstance(result, Curve) for result in curves.values()) else 1


def report(replay: RecordedReplay, curves: Mapping[str, Curve | str], tiered: Tiers | None) -> dict[str, Any]:
    """Return the output of `--json`. A gate that cannot be judged is null, with the reason under `not_judged`."""
    return {
        "states": len(replay.states),
        "partial_states": replay.partial,
        "pairs": sum(state.rule is not None for state in replay.states),
        "cost": sum(state.cost for state in replay.states),
        "unit": replay.unit,
        "unpriced_failures": replay.unpriced_failures,
        "teachers": list(replay.teachers),
        "gates": {name: asdict(result) if isinstance(result, Curve) else None for name, result in curves.items()},
        "not_judged": {name: result for name, result in curves.items() if isinstance(result, str)},
        "tiers": None if tiered is None else asdict(tiered),
    }


def _lines(replay: RecordedReplay, curves: Mapping[str, Curve | str], tiered: Tiers | None) -> Iterator[str]:
    cost = sum(state.cost for state in replay.states)
    price = f"${cost:.4f}"
    if replay.unit == "tokens":
        price = f"{cost:,.0f} tokens (the price of some replies is unknown, or all were free)"
    pairs = sum(state.rule is not None for state in replay.states)
    yield f"{len(replay.states):,} states, {pairs:,} pairs, {price}; teachers: {', '.join(replay.teachers)}"
    if replay.partial:
        yield f"  skipped, because some teacher was not asked: {replay.partial:,} states"
    if replay.unpriced_failures:
        yield f"  failures of unknown cost, in no sum: {replay.unpriced_failures:,}"
    if NOTHING in curves.values():
        yield f"  {NOTHING}"
        return
    yield "  share of pairs for this share of the cost, and the gain over asking at random:"
    yield "  " + f"{'gate':14}" + "".join(f"{share:>7} %" for share in SHARES) + "    gain"
    for name, result in curves.items():
        if isinstance(result, str):
            yield f"  {name:14}   not judged: {result}"
            continue
        shares = "".join(f"{result.points[share // 10].pairs:9.2f}" for share in SHARES)
        interval = "" if result.low is None or result.high is None else f" [{result.low:+.3f}, {result.high:+.3f}]"
        unscored = f"; no score for {result.unscored:,} states" if result.unscored else ""
        yield f"  {name:14}{shares}    {result.gain:+.3f}{interval}{unscored}"
    if tiered is not None:
        rules = ", ".join(f"{rule.replace('_', ' ')} {share:.0%}" for rule, share in tiered.by_rule.items())
        yield (
            f"  tiers: {', '.join(tiered.first)} first, the others at {tiered.others_asked:.0%} of states: "
            f"{tiered.cost:.0%} of the cost, {tiered.pairs:.0%} of the pairs ({rules})"
        )
