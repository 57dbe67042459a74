"""Actions that leave the training as it is: a copy of it, a measurement of it. They are no interventions."""

from __future__ import annotations

from typing import Final

EVALUATE: Final = "run.evaluate"
HARMLESS: Final = ("run.checkpoint", EVALUATE)
