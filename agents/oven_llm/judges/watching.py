"""How a member's judges are watched, as the settings have it, and where what is found is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_llm.judges.adversarial_controls import Controls
from oven_llm.judges.sanitize import LIMIT

FOLDER: Final = "judges"
"""Of a run: in it each member keeps what its controls found."""


@dataclass(frozen=True, slots=True)
class Watching:
    """`swapped` and `asked_again_every` are SelfChecks', `characters` is how much of a text a judge is shown. `kept` is
    the file of what controls found, JSON, without its suffixes; None: nothing is kept."""

    characters: int = LIMIT
    swapped: float = 0.0
    asked_again_every: int = 0
    kept: Path | None = None

    def controls(self, judge: str, swap: int = 0, *, of_content: bool = True) -> Controls:
        """For the judge that a member has since its `swap`th swap: a new one begins anew, and one that was asked before
        and may still have questions out does not write into its file."""
        path = self.kept.with_name(f"{self.kept.name}.{swap}.controls") if self.kept else None
        return Controls(f"{judge} {swap}", path, of_content=of_content)


CONTROLS_ONLY: Final = Watching()
"""Nothing is asked twice, and nothing is kept."""
