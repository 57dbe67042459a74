"""Which members of a reward committee fell silent, step by step. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from oven_runs.log.committee_view import SCORED

_ABSTAINED: Final = re.compile(r"rewards/([^/]+)/abstain/(.+)")


class MemberStates:
    """Give it the metrics of each step, in order."""

    def __init__(self) -> None:
        self._silent: dict[str, bool] = {}  # member that scores nothing → whether for want of a budget

    def fallen_silent(self, metrics: Mapping[str, float]) -> list[tuple[str, tuple[str, ...]]]:
        """Members that scored nothing in this step and something before, or never anything; and those whose budget is
        spent now. Each with the kinds of its failures."""
        if SCORED not in metrics:
            return []
        kinds: dict[str, list[str]] = {}
        for name in metrics:
            if found := _ABSTAINED.fullmatch(name):
                kinds.setdefault(found[1], []).append(found[2])
        for member in [member for member in self._silent if f"rewards/{member}/mean" in metrics]:
            del self._silent[member]
        fallen = []
        for member, failures in sorted(kinds.items()):
            spent = "budget" in failures
            if f"rewards/{member}/mean" in metrics or (member in self._silent and spent <= self._silent[member]):
                continue
            self._silent[member] = spent or self._silent.get(member, False)
            fallen.append((member, tuple(sorted(failures))))
        return fallen
