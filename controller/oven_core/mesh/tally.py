"""Count the votes on a ballot, and explain the result in a sentence.

Sums are exact (`math.fsum`) and values are sorted before they are merged. So the result does not depend on the order of
the votes or the names of the agents.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from oven_core.mesh.actuator_values import clip, direction, rounded, show
from oven_core.mesh.ballots import Ballot, request_text
from oven_core.mesh.quorum import check_quorum
from oven_core.mesh.reputation import effective_reputation
from oven_core.mesh.trust import Standing
from oven_core.mesh.value_merge import WEIGHT_TOLERANCE, WeightedVote, group_by_side, heaviest_side, merge_values
from oven_core.protocol.evidence import read_signal
from oven_core.protocol.messages import ActuatorSpec, TallyLine, Value
from oven_core.protocol.rules import Rules

MAX_SHADOW_LINES = 64
"""Maximum number of shadow agents in one tally, so that the decision always fits into the log."""

_Votes: TypeAlias = Sequence[WeightedVote]


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of a ballot before the guardrails."""

    passed: bool
    value: Value
    """The merged value, or the opening proposal if no value was merged."""
    direction: str
    lines: tuple[TallyLine, ...]
    reason: str
    only_newcomers: bool = False
    """Whether only newcomers propose the change, so that a person has to approve it."""
    only_small: bool = False
    """Whether the evidence is enough only for a small change."""
    veto: str = ""
    """The agent whose veto rejected the change; empty without a veto."""


def count_votes(
    ballot: Ballot,
    spec: ActuatorSpec,
    before: Value,
    rules: Rules,
    standing: Callable[[str], Standing],
    excluded_agents: Collection[str] = (),
    harm: str = "",
    is_advised: bool = False,
) -> Tally:
    """Return the result of `ballot`.

    `before` is the effective value, or None if it is unknown. `standing` maps an agent to its reputation and rights.
    The proposals of `excluded_agents` belong to a broken plan (oven_core.mesh.plans), and count as abstentions. `harm`
    describes harm beyond doubt, for which one proposal is enough; it is empty without any. One proposal is also enough
    if the change `is_advised`, because a person approves it.

    A vote with a reputation or a confidence of 0 has no effect. The vote of an agent with a reputation below
    `rules.least_reputation` keeps its weight, but cannot veto and does not count towards the quorum. If only newcomers
    propose the change, they count as trusted agents, and a person has to approve the result."""
    standing = functools.cache(standing)
    lines, only_newcomers = _weigh_lines(ballot, standing, excluded_agents)
    counted_lines = [line for line in lines if not line.shadow and line.agent not in excluded_agents]
    votes = [
        WeightedVote(
            line.agent,
            ballot.votes[line.agent].value,
            line.weight,
            line,
            decides_alone=standing(line.agent).decides_alone,
            signal=read_signal(ballot.votes[line.agent].vote.evidence),
        )
        for line in counted_lines
        if line.stance in ("propose", "for")
    ]
    against = [line for line in counted_lines if line.stance == "against"]

    def reject(reason: str, veto: str = "") -> Tally:
        value = ballot.opened.proposal
        return Tally(False, value, direction(before, value), lines, reason, veto=veto)

    if not votes:
        return reject(f"no agent supports it any longer: {_summarise(ballot, before, lines, against)}")
    side_name, side = heaviest_side(group_by_side(spec, before, votes))
    winners = [vote.line for vote in side]
    others = [vote.line for vote in votes if vote not in side]
    summary = _summarise(ballot, before, winners, against, others)
    confident_against = [line for line in against if line.confidence >= rules.veto_confidence and line.weight > 0]
    vetoes = [line for line in confident_against if _is_reputable(line, rules)]
    if vetoes:
        veto = max(vetoes, key=lambda line: (line.confidence, line.agent))
        return reject(f"{summary}; {_describe_veto(veto, rules)}", veto=veto.agent)
    low_reputation = [line for line in (*winners, *confident_against) if not _is_reputable(line, rules)]
    summary += _describe_low_reputation(low_reputation, rules)
    if problem := _check_majority(side_name, side, votes, against, rules):
        return reject(f"{summary}; {problem}")
    value = merge_values(spec, side)
    voices = [vote for vote in side if vote.weight > 0 and _is_reputable(vote.line, rules)]
    quorum = check_quorum(spec, before, voices, rules, harm, only_newcomers or is_advised)
    return Tally(
        quorum.is_reached,
        value,
        direction(before, value),
        lines,
        f"{summary}; {quorum.reason}",
        only_newcomers=quorum.is_reached and only_newcomers,
        only_small=quorum.only_small,
    )


def _weigh_lines(
    ballot: Ballot, standing: Callable[[str], Standing], excluded_agents: Collection[str]
) -> tuple[tuple[TallyLine, ...], bool]:
    """Return the lines of the tally with their final weights, and whether only newcomers propose the change."""
    lines = tuple(
        line.model_copy(update={"weight": 0.0}) if line.agent in excluded_agents else line
        for line in tally_lines(ballot, standing)
    )
    proposals = [line for line in lines if line.stance == "propose"]
    if any(line.weight > 0 for line in proposals) or not any(line.newcomer for line in proposals):
        return lines, False
    return tuple(line if line.agent in excluded_agents else _weigh_as_trusted(line) for line in lines), True


def _describe_veto(veto: TallyLine, rules: Rules) -> str:
    because = f" because {clip(veto.rationale, 300)}" if veto.rationale else ""
    required = f"a veto needs {rules.veto_confidence:.3g}"
    return f"vetoed by {veto.agent} at confidence {veto.confidence:.3g} ({required}){because}"


def _check_majority(side_name: str, side: _Votes, votes: _Votes, against: Sequence[TallyLine], rules: Rules) -> str:
    """Return why the heaviest side has no majority, or an empty string. `away` (see value_merge) never has one."""
    total = math.fsum([vote.weight for vote in votes] + [line.weight for line in against])
    if total <= 0:
        return "no vote has weight: every confidence or reputation is 0"
    share = math.fsum(vote.weight for vote in side) / total
    if side_name == "away" or share < rules.majority - WEIGHT_TOLERANCE:
        return f"split: the largest side has {share:.3g} of the total weight {total:.3g}, {rules.majority:.3g} required"
    return ""


def tally_lines(ballot: Ballot, standing: Callable[[str], Standing]) -> tuple[TallyLine, ...]:
    """Return one line per eligible agent, in the ballot's order, and then at most MAX_SHADOW_LINES lines of shadows."""
    eligible = [agent for agent in ballot.opened.eligible if not standing(agent).shadow]
    shadows = sorted(agent for agent in ballot.votes if agent not in eligible)[:MAX_SHADOW_LINES]
    # The rationales of all lines share about 6,000 bytes, so that the decision fits into the log.
    rationale_bytes = max(60, 6000 // max(1, len(eligible) + len(shadows)))
    lines = []
    for agent in (*eligible, *shadows):
        voter = standing(agent)
        reputation = rounded(effective_reputation(voter.reputation))
        cast = ballot.votes.get(agent)
        if cast is None:
            lines.append(TallyLine(agent=agent, stance="silent", reputation=reputation, newcomer=voter.newcomer))
            continue
        is_weightless = cast.vote.stance == "abstain" or agent in shadows or voter.newcomer
        signal = read_signal(cast.vote.evidence)
        lines.append(
            TallyLine(
                agent=agent,
                stance=cast.vote.stance,
                value=cast.value,
                kind=signal.kind if signal else "",
                shadow=agent in shadows,
                newcomer=voter.newcomer,
                confidence=cast.vote.confidence,
                reputation=reputation,
                weight=0.0 if is_weightless else _compute_weight(reputation, cast.vote.confidence),
                rationale=clip(cast.vote.rationale, min(rationale_bytes, 400)),
            )
        )
    return tuple(lines)


def _is_reputable(line: TallyLine, rules: Rules) -> bool:
    return line.reputation >= rules.least_reputation


def _weigh_as_trusted(line: TallyLine) -> TallyLine:
    """Return the line with the weight of a trusted agent if the agent is a newcomer."""
    if not line.newcomer or line.stance not in ("propose", "for", "against"):
        return line
    return line.model_copy(update={"weight": _compute_weight(line.reputation, line.confidence)})


def _compute_weight(reputation: float, confidence: float) -> float:
    return min(reputation * confidence, 1e12)  # keeps the sum of weights finite


def _describe_low_reputation(lines: Sequence[TallyLine], rules: Rules) -> str:
    """Return the part of the reason about agents whose votes cannot veto and do not count for the quorum."""
    if not lines:
        return ""
    names = ", ".join(f"{line.agent} {line.reputation:.3g}" for line in lines[:6])
    more = f" and {len(lines) - 6} more" if len(lines) > 6 else ""
    return f"; no quorum or veto with a reputation below {rules.least_reputation:.3g}: {names}{more}"


def _summarise(
    ballot: Ballot,
    before: Value,
    side: Sequence[TallyLine],
    against: Sequence[TallyLine],
    other_sides: Sequence[TallyLine] = (),
) -> str:
    """Return the part of the reason with the leading proposal, its rationale, and the weights on each side."""
    proposers = [line for line in side if line.stance == "propose"]
    lead = max(proposers, key=lambda line: (line.weight, line.agent), default=None)
    proposer = lead.agent if lead else ballot.opened.opened_by
    value = lead.value if lead else ballot.opened.proposal
    current = f", now {show(before)}" if before is not None else ""
    text = f"{proposer} {request_text(ballot.opened.actuator, value)}{current}"
    if lead and lead.rationale:
        text += f", because {clip(lead.rationale, 300)}"
    backing = _list_weights([line for line in side if line.stance in ("propose", "for")])
    rivals = f", {_list_weights(other_sides)} for another change" if other_sides else ""
    return f"{text}; {backing or 'none'} for{rivals}, {_list_weights(against) or 'none'} against"


def _list_weights(lines: Sequence[TallyLine]) -> str:
    names = ", ".join(f"{line.agent} {line.weight:.3g}" for line in lines[:6])
    return names + (f" and {len(lines) - 6} more" if len(lines) > 6 else "")
