"""For tests' own remote members: what they need beside their answers, where no judge is swapped."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from oven_controller.protocol.judge_spec import JudgeSpec


class Unswappable:
    @property
    def judges(self) -> Mapping[str, JudgeSpec]:
        return {}

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        raise NotImplementedError

    def join(self, member: str) -> None:
        raise NotImplementedError

    def leave(self, member: str) -> None:
        raise NotImplementedError
