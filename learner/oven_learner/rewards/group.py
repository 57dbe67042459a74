"""The groups of a batch, each a prompt with its completions: verdicts, rewards, and the evidence behind the rewards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from oven_core.protocol.committee_requests import ScoreRequest
from oven_learner.completions.sample import MemberVerdict
from oven_learner.rewards.aggregation import aggregate, agreement, sees_difference, weighted_mean
from oven_learner.rewards.scores import NO_DIFFERENCE, Abstention, Cell, Verdict

if TYPE_CHECKING:  # it needs numpy, which rules and judges do not
    from oven_learner.rewards.calibrated import CalibratedReward


@dataclass(frozen=True)
class Group:
    """A prompt and its completions, with the rules' scores."""

    prompt: str
    completions: tuple[str, ...]
    cells: Mapping[str, Sequence[Cell]]
    reference: str = ""
    """A known right answer, or empty."""
    written: tuple[str, ...] = ()
    """The policy's completions, if members see something else; see `as_written`."""

    @property
    def as_written(self) -> tuple[str, ...]:
        """The completions as the policy wrote them."""
        return self.written or self.completions


@dataclass
class Judged:
    """The outcome of a batch, identical on every rank."""

    rewards: list[float | None] = field(default_factory=list)
    """One reward per row, in the batch's order over all ranks. None in groups without a quorum."""
    groups: int = 0
    skipped: int = 0
    """Number of groups without a quorum."""
    metrics: dict[str, float] = field(default_factory=dict)
    abstained: Counter[str] = field(default_factory=Counter)
    """Number of abstentions by kind (one per member and group)."""


@dataclass(frozen=True)
class Evidence:
    """The evidence behind a batch's rewards, per group. Each list may be empty."""

    groups: Sequence[Group] = ()
    verdicts: Sequence[Mapping[str, Verdict]] = ()
    """Each asked member's verdict, per group."""
    weights: Mapping[str, float] = field(default_factory=dict)
    requests: Sequence[ScoreRequest] = ()
    """The requests to remote members."""
    reasons: Sequence[Mapping[str, Mapping[str, str]]] = ()
    """The reasons per group, by remote member and completion id."""

    def group_verdicts(self, index: int) -> list[MemberVerdict]:
        """Return one group's verdicts for display, in the committee's order.

        A rule that abstains on one completion abstains on the group; its other scores are still shown.
        """
        group, ids = self.groups[index], {}
        if self.requests:
            ids = {completion.id: completion.text for completion in self.requests[index].completions}
        reasons = self.reasons[index] if self.reasons else {}
        shown = []
        for name, verdict in self.verdicts[index].items():
            weight = self.weights.get(name)
            if isinstance(verdict, Abstention):
                scores = [None if isinstance(cell, Abstention) else cell for cell in group.cells.get(name, ())]
                any_scores = scores if any(score is not None for score in scores) else None
                shown.append(MemberVerdict(name, weight, any_scores, verdict.kind))
            else:
                by_text = {ids[key]: reason for key, reason in reasons.get(name, {}).items() if key in ids}
                texts = zip(group.completions, group.as_written, strict=True)
                of_written = {written: by_text[seen] for seen, written in texts if seen in by_text}
                shown.append(MemberVerdict(name, weight, verdict, reasons=of_written))
        return shown


Part: TypeAlias = tuple[list[str], list[str], dict[str, list[Cell]], list[str], list[str]]
"""A rank's rows: prompts, completions, each rule's cells, reference answers, and the policy's own completions. The last
list is empty if members see the same texts."""


def groups_of(parts: Sequence[Part], rules: Iterable[str], group_size: int) -> list[Group]:
    """Build groups. TRL keeps a group's rows adjacent over all ranks, but not on one rank."""
    prompts = [prompt for part in parts for prompt in part[0]]
    completions = [completion for part in parts for completion in part[1]]
    cells = {name: [cell for part in parts for cell in part[2][name]] for name in rules}
    references = [reference for part in parts for reference in part[3]]
    written = [text for part in parts for text in part[4]]
    groups = [slice(start, start + group_size) for start in range(0, len(prompts), group_size)]
    return [
        Group(
            prompts[rows.start],
            tuple(completions[rows]),
            {name: cells[name][rows] for name in cells},
            next(filter(None, references[rows]), ""),
            tuple(written[rows]),
        )
        for rows in groups
    ]


def whole(cells: Sequence[Cell]) -> Verdict:
    """Convert a rule's cells to its verdict. Abstaining on one completion means abstaining on the group."""
    scores: list[float] = []
    for cell in cells:
        if isinstance(cell, Abstention):
            return cell
        scores.append(cell)
    return tuple(scores)


def spread_out(verdict: Verdict, request: ScoreRequest, completions: Sequence[str]) -> Verdict:
    """Reorder scores from the order of the request to the order of the group."""
    if isinstance(verdict, Abstention):
        return verdict
    by_text = {completion.text: score for completion, score in zip(request.completions, verdict, strict=True)}
    return tuple(by_text[text] for text in completions)


def batch_rewards(
    groups: Sequence[Group],
    verdicts: Sequence[Mapping[str, Verdict]],
    shares: Mapping[str, float],
    *,
    weights: Mapping[str, float],
    quorum: int,
    rule: str,
    caution: float,
    shape: CalibratedReward | None = None,
) -> Judged:
    """Return the rewards of `groups` from each member's verdicts.

    Members without a share are measured, but do not vote. `weights` are the shares multiplied by reliability.
    `abstained` counts members that saw no difference in a group that was skipped for that reason.
    """
    outcome, agreements = Judged(groups=len(groups)), []
    shaped: list[tuple[Sequence[str], Sequence[float], Sequence[float]]] = []
    for group, of_group in zip(groups, verdicts, strict=True):
        scores = {name: verdict for name, verdict in of_group.items() if not isinstance(verdict, Abstention)}
        voting = {name: values for name, values in scores.items() if shares[name] > 0}
        if shape is None:
            rewards = aggregate(scores, weights, quorum=quorum, rule=rule, caution=caution)
        elif (merits := weighted_mean(scores, shares, quorum=quorum)) is not None:
            rewards = shape.rewards(group.as_written, merits)
            shaped.append((group.as_written, merits, rewards))
        else:
            rewards = None
        if rewards is None:
            outcome.skipped += 1
            if len(voting) >= quorum:
                outcome.abstained[NO_DIFFERENCE] += sum(not sees_difference(values) for values in voting.values())
        outcome.rewards += [None] * len(group.completions) if rewards is None else rewards
        if (correlation := agreement(voting)) is not None:
            agreements.append(correlation)
    if agreements:
        outcome.metrics["committee/agreement"] = math.fsum(agreements) / len(agreements)
    if shape is not None and shaped:
        outcome.metrics |= shape.measured(*zip(*shaped, strict=True))
    return outcome
