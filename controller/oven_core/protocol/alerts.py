"""The message by which an agent reports or clears a symptom of the training without proposing a change."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from oven_core.protocol.messages import LogMessage, Real

MAX_SYMPTOM_LENGTH: Final = 64
"""Maximum length of a symptom's name, the same as for a node of the knowledge graph in a vote."""
MAX_REASON_LENGTH: Final = 500
"""Maximum length of the reason. It keeps an alert below a fifth of the votes stream's message limit."""

SymptomName = Annotated[str, Field(min_length=1, max_length=MAX_SYMPTOM_LENGTH, pattern=r"^[A-Za-z0-9_.:-]+$")]


class Alert(LogMessage):
    """agent → all. A symptom began or ended. An agent sends one alert for the beginning and one for the end. A repeated
    alert has no effect. The mesh ignores alerts, so they do not affect decisions."""

    type: Literal["Alert"] = "Alert"
    state: Literal["raised", "cleared"]
    symptom: SymptomName = Field(
        description="name of the symptom, e.g. confidence_collapse; its node's name if the knowledge graph has one"
    )
    metric: str = Field(min_length=1, max_length=120, description="the metric that shows the symptom")
    value: Real = Field(description="the current value of the metric")
    expected: Real = Field(description="the bound that the value exceeds while the symptom lasts")
    tick: int = Field(ge=0, description="the newest tick of the data behind the alert")
    reason: str = Field(default="", max_length=MAX_REASON_LENGTH, description="one sentence with figures")
