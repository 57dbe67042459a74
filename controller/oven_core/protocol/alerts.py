"""What an agent has to say about the training itself, apart from any change of it: a symptom raised, or cleared."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from oven_core.protocol.messages import LogMessage, Real

SYMPTOM_LENGTH: Final = 64
"""Characters of a symptom's name: as many as of a node of the knowledge graph that a vote may name."""
REASON_LENGTH: Final = 500
"""Characters of the sentence: an alert with all its fields is under a fifth of what the votes stream takes."""

SymptomName = Annotated[str, Field(min_length=1, max_length=SYMPTOM_LENGTH, pattern=r"^[A-Za-z0-9_.:-]+$")]


class Alert(LogMessage):
    """agent → all. A symptom that the agent sees from here on, or sees no more. It decides nothing, no one waits for
    it, and the mesh passes it by. Said once when it begins and once when it ends; a repeat changes nothing."""

    type: Literal["Alert"] = "Alert"
    state: Literal["raised", "cleared"]
    symptom: SymptomName = Field(
        description="a symptom of the knowledge graph where there is one, e.g. confidence_collapse"
    )
    metric: str = Field(min_length=1, max_length=120, description="the metric that shows it")
    value: Real = Field(description="what that metric is now")
    expected: Real = Field(description="the bound that the value is beyond while the symptom lasts")
    tick: int = Field(ge=0, description="the newest tick in the window that it rests on")
    reason: str = Field(default="", max_length=REASON_LENGTH, description="one sentence with its figures")
