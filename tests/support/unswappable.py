"""The rest of a remote member for tests in which no judge is swapped, tested or paid."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import cached_property

from oven_core.protocol.committee_requests import JudgeHealth
from oven_core.protocol.judge_spec import JudgeSpec
from oven_learner.rewards.verdicts import Cost


class Unswappable:
    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        return {}

    def probe(self, member: str, model: JudgeSpec, *, is_new: bool = False) -> Future[str]:
        raise NotImplementedError

    @cached_property
    def health(self) -> dict[str, JudgeHealth]:
        return {}

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        return {}

    def take_cost(self) -> Cost:
        return Cost()

    def join(self, member: str) -> None:
        raise NotImplementedError

    def leave(self, member: str) -> None:
        raise NotImplementedError
