"""A batch's groups: one prompt and its completions each, what is asked and said of them, and the outcome."""

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
    """One prompt and the answers to it, with what the rules said of each."""

    prompt: str
    completions: tuple[str, ...]
    cells: Mapping[str, Sequence[Cell]]
    reference: str = ""
    """An answer known to be right; empty: none is."""
    written: tuple[str, ...] = ()
    """What the policy wrote, where that is not what members are shown; see `as_written`."""

    @property
    def as_written(self) -> tuple[str, ...]:
        """What the policy wrote."""
        return self.written or self.completions


@dataclass(frozen=True)
class Judged:
    """The outcome of a batch: the same on every rank."""

    rewards: list[float | None]
    """A row each, in the order of the batch over all ranks; None in a group without a quorum."""
    groups: int = 0
    skipped: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    abstained: Counter[str] = field(default_factory=Counter)
    """Kind → verdicts (one a member and group)."""


@dataclass(frozen=True)
class Evidence:
    """What a batch's rewards came of, group by group; each list is empty where there is nothing of its kind."""

    groups: Sequence[Group] = ()
    verdicts: Sequence[Mapping[str, Verdict]] = ()
    """Member → what it said of each group; without members that were not asked."""
    weights: Mapping[str, float] = field(default_factory=dict)
    requests: Sequence[ScoreRequest] = ()
    """What remote members were asked."""
    reasons: Sequence[Mapping[str, Mapping[str, str]]] = ()
    """Remote member → completion id → why, group by group."""


Part: TypeAlias = tuple[list[str], list[str], dict[str, list[Cell]], list[str], list[str]]
"""A rank's rows: prompts, completions, each rule's cells, an answer known to be right for each, and what the policy
wrote; empty where members are shown just that."""


def groups_of(parts: Sequence[Part], rules: Iterable[str], group_size: int) -> list[Group]:
    """TRL keeps a group's rows together over all ranks, though not on one."""
    prompts = [prompt for part in parts for prompt in part[0]]
    completions = [completion for part in parts for completion in part[1]]
    cells = {name: [cell for part in parts for cell in part[2][name]] for name in rules}
    references = [reference for part in parts for reference in part[3]]
    written = [one for part in parts for one in part[4]]
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
    """A rule that abstains on one of a group's completions abstains on the group."""
    scores: list[float] = []
    for cell in cells:
        if isinstance(cell, Abstention):
            return cell
        scores.append(cell)
    return tuple(scores)


def spread_out(verdict: Verdict, request: ScoreRequest, completions: Sequence[str]) -> Verdict:
    """Scores in the order of the group, from scores in the order of the request."""
    if isinstance(verdict, Abstention):
        return verdict
    by_text = {asked.text: score for asked, score in zip(request.completions, verdict, strict=True)}
    scores: Scores = tuple(by_text[text] for text in completions)
    return scores
