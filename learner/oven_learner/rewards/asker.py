"""The seam between a committee and its remote members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias

from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_learner.rewards.live_judges import Named
from oven_learner.rewards.scores import Cost, Verdict

Answers: TypeAlias = dict[str, list[Verdict]]
"""Member → its verdict on each group."""


class Asker(Protocol):
    """What a committee needs of its remote members (`RemoteMembers`)."""

    @property
    def members(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def deadline_s(self) -> float:
        """How long an answer may take."""

    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        """Member → the model that it was configured with, where that is known."""

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> Answers:
        """Member → its verdict on each request, in their order, by the model that is named."""

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Begin to ask another model a question: empty if it gave a verdict, else why not. `joins`: the member's
        process may still be on its way."""

    def join(self, member: str) -> None:
        """Have another member."""

    def leave(self, member: str) -> None:
        """Let a member go."""

    @property
    def health(self) -> dict[str, JudgeHealth]:
        """Member → what it last said of its judge; without those that said nothing."""

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        """Completion id → why the member scored it so, of a group that it was asked for last; told once."""

    def take_cost(self) -> Cost:
        """What it cost since this was called last."""

    def close(self) -> None:
        """Nothing more will be asked."""
