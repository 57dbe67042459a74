"""Names of a run's own actuators, for code that means exactly one. What it does to a run, its spec says (`effect`)."""

from __future__ import annotations

from typing import Final

ROLLBACK: Final = "run.rollback"
UNDO: Final = "run.undo_rollback"
"""Forward again to what the last rollback left."""
EVALUATE: Final = "run.evaluate"
CHECKPOINT: Final = "run.checkpoint"
BEST: Final = "run.best"
"""Which weights the run ends with: a choice, not an action, and nothing moves before the end."""
HOLD: Final = "run.hold"
STOP: Final = "run.stop"
