"""The groups of a batch, the rewards that a committee computes for them, and the evidence behind these rewards. A group
is a prompt with its completions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from oven_core.protocol.committee_requests import ScoreRequest
from oven_learner.completions.sample_message import MemberVerdict
from oven_learner.rewards.aggregation import aggregate, agreement, sees_difference, weighted_mean
from oven_learner.rewards.verdicts import ABSTENTION_KINDS, NO_DIFFERENCE, OTHER, Abstention, RuleResult, Verdict
from oven_runs.log.committee_view import abstention_metric

if TYPE_CHECKING:  # at run time it would import numpy, which rules and judges do not need
    from oven_learner.rewards.calibrated_reward import CalibratedReward

MAX_CUSTOM_KINDS = 16
"""Maximum number of failure kinds from remote members per batch. Further kinds are counted together."""


@dataclass(frozen=True)
class Group:
    """A prompt and its completions, with the rules' scores."""

    prompt: str
    completions: tuple[str, ...]
    rule_results: Mapping[str, Sequence[RuleResult]]
    reference: str = ""
    """An answer that is known to be correct, or an empty string."""
    originals: tuple[str, ...] = ()
    """The completions as the policy wrote them, if members see changed ones. Otherwise empty."""

    @property
    def original_completions(self) -> tuple[str, ...]:
        """The completions as the policy wrote them."""
        return self.originals or self.completions


@dataclass
class BatchOutcome:
    """The outcome of a batch, identical on every rank."""

    rewards: list[float | None] = field(default_factory=list)
    """Reward of each row, over all ranks and in the order of the batch. None in groups without a quorum."""
    groups: int = 0
    skipped_groups: int = 0
    """Number of groups without a quorum."""
    metrics: dict[str, float] = field(default_factory=dict)
    abstentions: Counter[str] = field(default_factory=Counter)
    """Number of abstentions of each kind, counted once per member and group."""


@dataclass(frozen=True)
class Evidence:
    """The evidence behind a batch's rewards. Each sequence is empty or has one entry per group."""

    groups: Sequence[Group] = ()
    verdicts: Sequence[Mapping[str, Verdict]] = ()
    """Verdicts on each group, by member."""
    weights: Mapping[str, float] = field(default_factory=dict)
    requests: Sequence[ScoreRequest] = ()
    """Requests to remote members."""
    reasons: Sequence[Mapping[str, Mapping[str, str]]] = ()
    """Reasons in each group, by remote member and completion id."""

    def group_verdicts(self, index: int) -> list[MemberVerdict]:
        """Return one group's verdicts for display, in the committee's order. A rule that abstains on one completion
        abstains on the group, but its other scores are still shown."""
        group = self.groups[index]
        requested_completions = self.requests[index].completions if self.requests else ()
        texts_by_id = {completion.id: completion.text for completion in requested_completions}
        reasons = self.reasons[index] if self.reasons else {}
        verdicts = []
        for name, verdict in self.verdicts[index].items():
            weight = self.weights.get(name)
            if isinstance(verdict, Abstention):
                results = group.rule_results.get(name, ())
                scores = [None if isinstance(result, Abstention) else result for result in results]
                shown_scores = scores if any(score is not None for score in scores) else None
                verdicts.append(MemberVerdict(name, weight, shown_scores, verdict.kind))
            else:
                member_reasons = reasons.get(name, {})
                by_text = {text: member_reasons[key] for key, text in texts_by_id.items() if key in member_reasons}
                texts = zip(group.completions, group.original_completions, strict=True)
                by_original = {original: by_text[text] for text, original in texts if text in by_text}
                verdicts.append(MemberVerdict(name, weight, verdict, reasons=by_original))
        return verdicts


class RankRows(NamedTuple):
    """The rows of a batch on one rank, as columns with one entry per row."""

    prompts: list[str]
    completions: list[str]
    rule_results: dict[str, list[RuleResult]]
    references: list[str]
    originals: list[str]
    """The completions as the policy wrote them. Empty if members see the same ones."""


def build_groups(ranks: Sequence[RankRows], rules: Iterable[str], group_size: int) -> list[Group]:
    """Build the groups of a batch. TRL keeps the rows of a group adjacent over all ranks, but not on one rank."""
    prompts = [prompt for rank in ranks for prompt in rank.prompts]
    completions = [completion for rank in ranks for completion in rank.completions]
    rule_results = {name: [result for rank in ranks for result in rank.rule_results[name]] for name in rules}
    references = [reference for rank in ranks for reference in rank.references]
    originals = [text for rank in ranks for text in rank.originals]
    group_slices = [slice(start, start + group_size) for start in range(0, len(prompts), group_size)]
    return [
        Group(
            prompts[rows.start],
            tuple(completions[rows]),
            {name: rule_results[name][rows] for name in rule_results},
            next(filter(None, references[rows]), ""),
            tuple(originals[rows]),
        )
        for rows in group_slices
    ]


def rule_verdict(results: Sequence[RuleResult]) -> Verdict:
    """Convert a rule's results to its verdict. A rule that abstains on one completion abstains on the group."""
    scores: list[float] = []
    for result in results:
        if isinstance(result, Abstention):
            return result
        scores.append(result)
    return tuple(scores)


def to_group_order(verdict: Verdict, request: ScoreRequest, completions: Sequence[str]) -> Verdict:
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
    calibration: CalibratedReward | None = None,
) -> BatchOutcome:
    """Return the rewards of `groups`, computed from each member's verdicts. Members without a share are measured, but
    do not vote. `weights` are the shares multiplied by reliability. The outcome's `abstentions` count members that saw
    no difference in a group that was skipped for that reason."""
    outcome = BatchOutcome(groups=len(groups))
    agreements: list[float] = []
    calibrated_groups: list[tuple[Sequence[str], Sequence[float], Sequence[float]]] = []
    for group, group_verdicts in zip(groups, verdicts, strict=True):
        scores = {name: verdict for name, verdict in group_verdicts.items() if not isinstance(verdict, Abstention)}
        voter_scores = {name: values for name, values in scores.items() if shares[name] > 0}
        rewards: list[float] | None
        if calibration is None:
            rewards = aggregate(scores, weights, quorum=quorum, rule=rule, caution=caution)
        else:
            mean_scores = weighted_mean(scores, shares, quorum=quorum)
            rewards = calibration.rewards(group.original_completions, mean_scores) if mean_scores is not None else None
            if mean_scores is not None and rewards is not None:
                calibrated_groups.append((group.original_completions, mean_scores, rewards))
        if rewards is None:
            outcome.skipped_groups += 1
            if len(voter_scores) >= quorum:
                undecided = [name for name, values in voter_scores.items() if not sees_difference(values)]
                outcome.abstentions[NO_DIFFERENCE] += len(undecided)
        outcome.rewards += [None] * len(group.completions) if rewards is None else rewards
        correlation = agreement(voter_scores)
        if correlation is not None:
            agreements.append(correlation)
    if agreements:
        outcome.metrics["committee/agreement"] = math.fsum(agreements) / len(agreements)
    if calibration is not None and calibrated_groups:
        texts, mean_scores_by_group, rewards_by_group = zip(*calibrated_groups, strict=True)
        outcome.metrics |= calibration.metrics(texts, mean_scores_by_group, rewards_by_group)
    return outcome


def count_abstentions(member: str, verdicts: Sequence[Mapping[str, Verdict]]) -> Counter[str]:
    """Return the number of the member's abstentions by kind."""
    member_verdicts = [group_verdicts[member] for group_verdicts in verdicts if member in group_verdicts]
    return Counter(verdict.kind for verdict in member_verdicts if isinstance(verdict, Abstention))


def member_metrics(
    members: Iterable[str], judges: Iterable[str], verdicts: Sequence[Mapping[str, Verdict]]
) -> tuple[dict[str, float], Counter[str]]:
    """Return the metrics of the members' verdicts, and the number of all abstentions by kind. Abstentions of each kind
    are counted for all members together and for each of the `judges`. For a judge, counts of 0 are omitted."""
    metrics: dict[str, float] = {}
    kinds_by_member = {member: count_abstentions(member, verdicts) for member in members}
    for member in kinds_by_member:
        member_verdicts = [group_verdicts[member] for group_verdicts in verdicts if member in group_verdicts]
        scores = [score for verdict in member_verdicts if not isinstance(verdict, Abstention) for score in verdict]
        if scores:
            metrics[f"rewards/{member}/mean"] = math.fsum(scores) / len(scores)
    kinds = sum(kinds_by_member.values(), Counter[str]())
    metrics["committee/abstentions"] = float(kinds.total())
    custom_kinds = [kind for kind in sorted(kinds) if kind not in ABSTENTION_KINDS]
    for kind in custom_kinds[MAX_CUSTOM_KINDS:]:
        kinds[OTHER] += kinds.pop(kind)
    metrics |= {f"committee/abstain/{kind}": float(count) for kind, count in kinds.items()}
    for judge in judges:
        counts = kinds_by_member.get(judge, Counter[str]())
        metrics |= {abstention_metric(judge, kind): float(count) for kind, count in counts.items() if kind in kinds}
    return metrics, kinds
