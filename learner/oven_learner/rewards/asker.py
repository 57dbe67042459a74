"""The interface between a committee and its remote members."""

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
    """The interface that a committee needs of its remote members (`RemoteMembers`)."""

    @property
    def members(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def deadline_s(self) -> float:
        """Timeout of an answer."""

    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        """Member → its configured model, where known."""

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> Answers:
        """Return member → its verdict on each request, in order, by the named model."""

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        """Send another model a test question. The result is empty if it gave a verdict, otherwise the reason.

        `joins`: the member's process may still be starting.
        """

    def join(self, member: str) -> None:
        """Add a member."""

    def leave(self, member: str) -> None:
        """Remove a member."""

    @property
    def health(self) -> dict[str, JudgeHealth]:
        """Member → the latest report on its judge, for members that sent one."""

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        """Return completion id → the member's reason, for a group of its last request. Can be read once."""

    def take_cost(self) -> Cost:
        """Return the cost since the last call."""

    def close(self) -> None:
        """End the connection; no more questions follow."""
