"""A batch's groups (one prompt with its completions), the evidence behind their rewards, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from oven_core.protocol.committee_requests import ScoreRequest
from oven_learner.rewards.rule_members import Cell
from oven_learner.rewards.scores import Abstention, Scores, Verdict


@dataclass(frozen=True)
class Group:
    """One prompt and its completions, with the rules' scores."""

    prompt: str
    completions: tuple[str, ...]
    cells: Mapping[str, Sequence[Cell]]
    reference: str = ""
    """An answer known to be right, or empty."""
    written: tuple[str, ...] = ()
    """The policy's own completions, if members see something else; see `as_written`."""

    @property
    def as_written(self) -> tuple[str, ...]:
        """The policy's own completions."""
        return self.written or self.completions


@dataclass(frozen=True)
class Judged:
    """The outcome of a batch, identical on every rank."""

    rewards: list[float | None]
    """One per row, in the order of the batch over all ranks; None in groups without a quorum."""
    groups: int = 0
    skipped: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    abstained: Counter[str] = field(default_factory=Counter)
    """Kind → number of abstentions (one per member and group)."""


@dataclass(frozen=True)
class Evidence:
    """The evidence behind a batch's rewards, per group. Each list may be empty."""

    groups: Sequence[Group] = ()
    verdicts: Sequence[Mapping[str, Verdict]] = ()
    """Member → its verdict on each group, for the members that were asked."""
    weights: Mapping[str, float] = field(default_factory=dict)
    requests: Sequence[ScoreRequest] = ()
    """The requests to remote members."""
    reasons: Sequence[Mapping[str, Mapping[str, str]]] = ()
    """Per group: remote member → completion id → reason."""


Part: TypeAlias = tuple[list[str], list[str], dict[str, list[Cell]], list[str], list[str]]
"""A rank's rows: prompts, completions, each rule's cells, reference answers, and the policy's own completions. The last
is empty if members see the same."""


def groups_of(parts: Sequence[Part], rules: Iterable[str], group_size: int) -> list[Group]:
    """Build groups. TRL keeps a group's rows adjacent over all ranks, but not on one rank."""
    prompts = [prompt for part in parts for prompt in part[0]]
    completions = [completion for part in parts for completion in part[1]]
    cells = {name: [cell for part in parts for cell in part[2][name]] for name in rules}
    references = [reference for part in parts for reference in part[3]]
    written = [text for part in parts for text in part[4]]
    return [
        Group(
            prompts[start],
            tuple(completions[start : start + group_size]),
            {name: cells[name][start : start + group_size] for name in cells},
            next(filter(None, references[start : start + group_size]), ""),
            tuple(written[start : start + group_size]),
        )
        for start in range(0, len(prompts), group_size)
    ]


def whole(cells: Sequence[Cell]) -> Verdict:
    """Turn a rule's cells into its verdict. Abstaining on one completion means abstaining on the group."""
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
    scores: Scores = tuple(by_text[text] for text in completions)
    return scores
