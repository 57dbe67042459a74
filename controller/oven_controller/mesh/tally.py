"""From votes to a verdict: weights, sides, the weighted median, veto, majority, quorum, and a sentence that says so.

Sums are exact (`math.fsum`) and values are sorted before they merge, so neither the order of the votes nor the names of
the agents can change a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from oven_controller.mesh.ballots import Ballot, wish
from oven_controller.mesh.merge import TIE, Voice, heaviest, merged, sides_of
from oven_controller.mesh.values import clip, direction, rounded, show
from oven_controller.messages import ActuatorSpec, TallyLine, Value
from oven_controller.rules import Rules

SHADOWS = 64
"""Lines of shadow agents in one tally: however many there are, the decision fits into the log."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What the votes say, before any guardrail. `value` is the merged one, or the opening proposal without one."""

    passed: bool
    value: Value
    direction: str
    lines: tuple[TallyLine, ...]
    reason: str


def count(
    ballot: Ballot,
    spec: ActuatorSpec,
    before: Value,
    rules: Rules,
    reputations: Mapping[str, float],
    shadowed: Callable[[str], bool],
) -> Tally:
    """The verdict on `ballot`. `before` is the effective value, None where it is unknown; `shadowed` says whose votes
    stand in the tally and do not count.

    A voice without weight (a reputation or a confidence of 0) decides nothing either. One whose reputation lies below
    `rules.least_reputation` has its weight, and makes no veto and no quorum.
    """
    lines = lines_of(ballot, reputations, shadowed)
    counted = [line for line in lines if not line.shadow]
    voices = [
        Voice(line.agent, ballot.casts[line.agent].value, line.weight, line, _specialist(ballot, line.agent))
        for line in counted
        if line.stance in ("propose", "for")
    ]
    against = [line for line in counted if line.stance == "against"]
    opening = ballot.opened.proposal

    def rejected(told: str, value: Value = opening) -> Tally:
        return Tally(False, value, direction(before, value), lines, told)

    sure_against = [line for line in against if line.confidence >= rules.veto_confidence and line.weight > 0]
    vetoes = [line for line in sure_against if _trusted(line, rules)]
    veto = max(vetoes, key=lambda line: (line.confidence, line.agent), default=None)
    if not voices:
        return rejected(f"nobody is for it any more: {_plea(ballot, before, lines, against)}")
    sides = sides_of(spec, before, voices)
    name, side = heaviest(sides)
    plea = _plea(ballot, before, [voice.line for voice in side], against, [v.line for v in voices if v not in side])
    if veto is not None:
        why = f" because {clip(veto.rationale, 300)}" if veto.rationale else ""
        limit = f"{veto.confidence:.3g}, a veto from {rules.veto_confidence:.3g} on"
        return rejected(f"{plea}; vetoed by {veto.agent} at confidence {limit}{why}")
    doubted = [line for line in (*(voice.line for voice in side), *sure_against) if not _trusted(line, rules)]
    plea += _doubts(doubted, rules)
    total = math.fsum([voice.weight for voice in voices] + [line.weight for line in against])
    share = math.fsum(voice.weight for voice in side) / total if total > 0 else 0.0
    if total <= 0:
        return rejected(f"{plea}; no weight behind it: every confidence or reputation is 0")
    if name == "away" or share < rules.majority - TIE:
        part = f"{share:.3g} of the weight {total:.3g} stands together, {rules.majority:.3g} of it is needed"
        return rejected(f"{plea}; split: {part}")
    value = merged(spec, side)
    agreeing = [voice for voice in side if voice.weight > 0 and _trusted(voice.line, rules)]
    sure = max((voice.line.confidence for voice in agreeing if voice.specialist), default=None)
    alone = sure is not None and sure >= rules.specialist_confidence
    if not alone and len(agreeing) < rules.agreeing:
        have = "no specialist" if sure is None else f"its specialist at confidence {sure:.3g}"
        need = f"a specialist at {rules.specialist_confidence:.3g} or {rules.agreeing} agreeing agents are needed"
        return rejected(f"{plea}; no quorum: {len(agreeing)} for it, {have}; {need}", value)
    quorum = (
        f"specialist quorum {rules.specialist_confidence:.3g}"
        if alone
        else f"{len(agreeing)} of {rules.agreeing} needed agree"
    )
    return Tally(True, value, direction(before, value), lines, f"{plea}; {quorum}")


def lines_of(
    ballot: Ballot, reputations: Mapping[str, float], shadowed: Callable[[str], bool]
) -> tuple[TallyLine, ...]:
    """One line for each eligible agent, by name, those that stayed silent too; after them the shadow agents that
    voted, of those at most `SHADOWS`."""
    eligible = [agent for agent in ballot.opened.eligible if not shadowed(agent)]
    shadows = sorted(agent for agent in ballot.casts if agent not in eligible)[:SHADOWS]
    room = max(60, 6000 // max(1, len(eligible) + len(shadows)))
    lines = []
    for agent in (*eligible, *shadows):
        reputation = reputations.get(agent, 1.0)
        reputation = rounded(reputation) if math.isfinite(reputation) and reputation > 0 else 0.0
        cast = ballot.casts.get(agent)
        if cast is None:
            lines.append(TallyLine(agent=agent, stance="silent", reputation=reputation))
            continue
        weight = min(reputation * cast.vote.confidence, 1e12)  # a finite sum of finitely many
        lines.append(
            TallyLine(
                agent=agent,
                stance=cast.vote.stance,
                value=cast.value,
                shadow=agent in shadows,
                confidence=cast.vote.confidence,
                reputation=reputation,
                weight=0.0 if cast.vote.stance == "abstain" or agent in shadows else weight,
                rationale=clip(cast.vote.rationale, min(room, 400)),
            )
        )
    return tuple(lines)


def _trusted(line: TallyLine, rules: Rules) -> bool:
    return line.reputation >= rules.least_reputation


def _doubts(lines: Sequence[TallyLine], rules: Rules) -> str:
    """Whose voice makes no quorum and no veto, and why."""
    if not lines:
        return ""
    shown = ", ".join(f"{line.agent} {line.reputation:.3g}" for line in lines[:6])
    more = f" and {len(lines) - 6} more" if len(lines) > 6 else ""
    return f"; no quorum and no veto below a reputation of {rules.least_reputation:.3g}: {shown}{more}"


def _specialist(ballot: Ballot, agent: str) -> bool:
    cast = ballot.casts[agent]
    return cast.specialist and cast.vote.stance == "propose"


def _plea(
    ballot: Ballot,
    before: Value,
    side: Sequence[TallyLine],
    against: Sequence[TallyLine],
    others: Sequence[TallyLine] = (),
) -> str:
    """Who asked for what and why, and the weights on either side."""
    proposers = [line for line in side if line.stance == "propose"]
    lead = max(proposers, key=lambda line: (line.weight, line.agent), default=None)
    who = lead.agent if lead else ballot.opened.opened_by
    value = lead.value if lead else ballot.opened.proposal
    text = f"{who} {wish(ballot.opened.actuator, value)}" + (f", now {show(before)}" if before is not None else "")
    if lead and lead.rationale:
        text += f", because {clip(lead.rationale, 300)}"
    backing = _weights([line for line in side if line.stance in ("propose", "for")])
    rivals = f", {_weights(others)} for something else" if others else ""
    return f"{text}; {backing or 'none'} for{rivals}, {_weights(against) or 'none'} against"


def _weights(lines: Sequence[TallyLine]) -> str:
    shown = ", ".join(f"{line.agent} {line.weight:.3g}" for line in lines[:6])
    return shown + (f" and {len(lines) - 6} more" if len(lines) > 6 else "")
