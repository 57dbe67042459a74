"""`oven-controller traces gate`: what asking fewer teachers would have cost and found, by a recorded replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from oven_agents.traces.gate import GATES, Curve, Replay, Tiers, cheapest, curve, replayed, tiers
from oven_agents.traces.pairs_command import Replies, SkipBad, read_replies
from oven_controller.errors import ConfigError, UnknownNameError
from oven_controller.plugged_command import PluggedCommand
from oven_controller.terminal_text import say
from oven_controller.traces.source_file import From, Json, Source, source_traces


def _gate(
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
    asked = read_replies(replies, ())
    replay = replayed(source_traces(source, from_, skip_bad=skip_bad), asked)
    for name in cheap or ():
        if name not in replay.teachers:
            raise UnknownNameError("teacher", name, replay.teachers)
    if not replay.states:
        raise ConfigError(
            f"{replies}: no state of {source} has replies of all of {', '.join(replay.teachers)}, and gates are judged "
            "on such states: finish the replay"
        )
    curves = [one for name in GATES if (one := curve(replay, name)) is not None]
    first = tiers(replay, cheap or [cheapest(replay)])
    if as_json:
        print(json.dumps(report(replay, curves, first)))
    else:
        say(*_text(replay, curves, first))
    return 0 if curves else 1


def report(replay: Replay, curves: list[Curve], first: Tiers | None) -> dict[str, Any]:
    """All that is to be said, for JSON."""
    return {
        "states": len(replay.states),
        "partial_states": replay.partial,
        "pairs": sum(one.rule is not None for one in replay.states),
        "cost": sum(one.cost for one in replay.states),
        "unit": replay.unit,
        "unpriced_failures": replay.unpriced_failures,
        "teachers": list(replay.teachers),
        "gates": dict.fromkeys(GATES) | {one.gate: asdict(one) for one in curves},
        "tiers": None if first is None else asdict(first),
    }


def _text(replay: Replay, curves: list[Curve], first: Tiers | None) -> Iterator[str]:
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
    if not curves:
        yield "  no pair was made, or nothing was paid: there is nothing to save"
        return
    yield "  share of pairs when this share of the cost is paid, and the gain over asking at random:"
    yield "  " + f"{'gate':14}" + "".join(f"{share:>7} %" for share in range(20, 100, 20)) + "    gain"
    for one in curves:
        shares = "".join(f"{one.points[share // 10].pairs:9.2f}" for share in range(20, 100, 20))
        unscored = f"; cannot tell at {one.unscored:,}" if one.unscored else ""
        yield f"  {one.gate:14}{shares}    {one.gain:+.3f} [{one.low:+.3f}, {one.high:+.3f}]{unscored}"
    for name in GATES:
        if name not in {one.gate for one in curves}:
            yield f"  {name:14}   cannot tell about any state: the traces do not say what it goes by"
    if first is not None:
        names = ", ".join(first.first)
        rules = ", ".join(f"{rule.replace('_', ' ')} {share:.0%}" for rule, share in first.by_rule.items())
        yield (
            f"  tiers: {names} first, the others at {first.asked:.0%} of states: "
            f"{first.cost:.0%} of the cost, {first.pairs:.0%} of the pairs ({rules})"
        )


GATE: Final = PluggedCommand(
    "traces",
    "gate",
    "which states to ask about, and whom first: shares of cost against shares of pairs, by a recorded replay",
    "traces.jsonl replies.jsonl --cheap small",
    _gate,
)
