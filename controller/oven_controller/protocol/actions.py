"""Names of actions, for code that means exactly one. What it does to a run, its spec says (`effect`)."""

from __future__ import annotations

from typing import Final

ROLLBACK: Final = "run.rollback"
UNDO: Final = "run.undo_rollback"
"""Forward again to what the last rollback left."""
EVALUATE: Final = "run.evaluate"
CHECKPOINT: Final = "run.checkpoint"
HOLD: Final = "run.hold"
STOP: Final = "run.stop"
