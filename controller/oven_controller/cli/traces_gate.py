"""`oven-controller traces gate`: what asking fewer teachers would have cost and found, by a recorded replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from oven_controller.cli.options import Json
from oven_controller.cli.traces_pairs import Replies, SkipBad, read_replies
from oven_controller.cli.traces_source import From, Source
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.terminal_text import say
from oven_llm.trace_replay.gate import GATES, NOTHING, Curve, RecordedReplay, Tiers, cheapest, curve, replayed, tiers
from oven_runs.traces.formats.table import read_traces


def gate(
    source: Source,
    replies: Replies,
    cheap: Annotated[
        list[str] | None,
        typer.Option("--cheap", metavar="TEACHER", help="Ask this one first; repeatable.", show_default="the cheapest"),
    ] = None,
    from_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Show, from a recorded replay, which states to ask about and which teachers to ask first: the share of the cost
    against the share of the pairs.

    Example: oven-controller traces gate traces.jsonl replies.jsonl --cheap small
    """
    asked = read_replies(replies, ())
    replay = replayed(read_traces(source, from_, skip_bad=skip_bad), asked)
    for name in cheap or ():
        if name not in replay.teachers:
            raise UnknownNameError("teacher", name, replay.teachers)
    if not replay.states:
        raise ConfigError(
            f"{replies}: no state of {source} has replies of all of {', '.join(replay.teachers)}, and gates are judged "
            "on such states: finish the replay"
        )
    found = {name: curve(replay, name) for name in GATES}
    least = cheapest(replay)
    asked_first = cheap or ([] if least is None else [least])
    first = tiers(replay, asked_first) if asked_first else None
    if as_json:
        print(json.dumps(report(replay, found, first)))
    else:
        say(*_text(replay, found, first))
    return 0 if any(isinstance(one, Curve) for one in found.values()) else 1


def report(replay: RecordedReplay, found: Mapping[str, Curve | str], first: Tiers | None) -> dict[str, Any]:
    """All that is to be said, for JSON. A gate that cannot be judged is null, with the reason under `not_judged`."""
    return {
        "states": len(replay.states),
        "partial_states": replay.partial,
        "pairs": sum(one.rule is not None for one in replay.states),
        "cost": sum(one.cost for one in replay.states),
        "unit": replay.unit,
        "unpriced_failures": replay.unpriced_failures,
        "teachers": list(replay.teachers),
        "gates": {name: asdict(one) if isinstance(one, Curve) else None for name, one in found.items()},
        "not_judged": {name: one for name, one in found.items() if isinstance(one, str)},
        "tiers": None if first is None else asdict(first),
    }


def _text(replay: RecordedReplay, found: Mapping[str, Curve | str], first: Tiers | None) -> Iterator[str]:
    cost = sum(one.cost for one in replay.states)
    price = (
        f"${cost:.4f}"
        if replay.unit == "usd"
        else f"{cost:,.0f} tokens (the price of some replies is not known, or all were free)"
    )
    pairs = sum(one.rule is not None for one in replay.states)
    yield f"{len(replay.states):,} states, {pairs:,} pairs, {price}; teachers: {', '.join(replay.teachers)}"
    if replay.partial:
        yield f"  left out, since some teacher was not asked: {replay.partial:,} states"
    if replay.unpriced_failures:
        yield f"  failures of unknown cost, in no sum: {replay.unpriced_failures:,}"
    if NOTHING in found.values():
        yield f"  {NOTHING}"
        return
    yield "  share of pairs when this share of the cost is paid, and the gain over asking at random:"
    yield "  " + f"{'gate':14}" + "".join(f"{share:>7} %" for share in range(20, 100, 20)) + "    gain"
    for name, one in found.items():
        if isinstance(one, str):
            yield f"  {name:14}   not judged: {one}"
            continue
        shares = "".join(f"{one.points[share // 10].pairs:9.2f}" for share in range(20, 100, 20))
        between = "" if one.low is None or one.high is None else f" [{one.low:+.3f}, {one.high:+.3f}]"
        unscored = f"; cannot tell at {one.unscored:,}" if one.unscored else ""
        yield f"  {name:14}{shares}    {one.gain:+.3f}{between}{unscored}"
    if first is not None:
        names = ", ".join(first.first)
        rules = ", ".join(f"{rule.replace('_', ' ')} {share:.0%}" for rule, share in first.by_rule.items())
        yield (
            f"  tiers: {names} first, the others at {first.asked:.0%} of states: "
            f"{first.cost:.0%} of the cost, {first.pairs:.0%} of the pairs ({rules})"
        )
