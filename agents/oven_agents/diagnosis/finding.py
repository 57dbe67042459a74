"""The findings of a diagnosis, and the evidence for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["act", "advise", "note"]
MIN_ACT_CONFIDENCE: Final = 0.8
"""Minimum confidence of a finding to act on."""
MIN_ADVICE_CONFIDENCE: Final = 0.5
"""Minimum confidence of a finding that gives advice. Findings with less are notes."""


class Finding(BaseModel):
    """One thing that is wrong with a run."""

    model_config = ConfigDict(frozen=True)

    kind: str = Field(description="what is wrong, e.g. lr_too_low; many kinds are nodes of the knowledge graph")
    metric: str = Field(description="the metric that shows it best")
    onset_step: int = Field(description="step at which it began")
    onset_tick: int = Field(description="tick at which it began, because steps may repeat")
    severity: Severity = Field(description="act: change something now; advise: consider a change; note: be aware")
    confidence: float = Field(ge=0, le=1, description="certainty that this is wrong; not calibrated")
    message: str = Field(description="the figures behind the finding, and what the controller did about it")
    remedy: str = Field(description="what to change")
    cost: str = Field(description="what it costs to follow the remedy if the finding is wrong; may be empty")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe that something is wrong."""

    kind: str
    weight: float
    """The probability that the kind is right, from this evidence alone."""
    tick: int
    """Tick at which it began."""
    text: str
    corrected: str = ""
    """The knob by which the controller corrected it, if any."""
    metric: str = ""
    """The metric that shows it, if it is not the run's objective."""
    remedy: str = ""
    """What to change, if this is more specific than the remedy of the kind."""
    cost: str = ""
    """What this remedy costs if the finding is wrong, if that differs from the cost of the kind."""
    level: float | None = None
    """The level of the metric that is wrong, for an alert while the run continues."""
    bound: float | None = None
    """The level with which it was compared."""
