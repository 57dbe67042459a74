"""Actions that put the run somewhere else: what was measured before them describes other weights."""

from __future__ import annotations

from typing import Final

ROLLBACK: Final = "run.rollback"
UNDO: Final = "run.undo_rollback"
"""Forward again to what the last rollback left."""
JUMPS: Final = (ROLLBACK, UNDO)
