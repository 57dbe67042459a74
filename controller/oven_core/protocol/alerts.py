"""Alert messages, by which an agent reports or clears a symptom of the training without proposing a change."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from oven_core.protocol.messages import LogMessage, Real

SYMPTOM_LENGTH: Final = 64
"""Characters of a symptom's name, the same limit as for a node of the knowledge graph in a vote."""
REASON_LENGTH: Final = 500
"""Characters of the sentence. An alert with all its fields is less than a fifth of the votes stream's limit."""

SymptomName = Annotated[str, Field(min_length=1, max_length=SYMPTOM_LENGTH, pattern=r"^[A-Za-z0-9_.:-]+$")]


class Alert(LogMessage):
    """agent → all. A symptom that the agent sees from now on, or no longer sees. It decides nothing, and the mesh
    ignores it. An agent sends one when the symptom begins and one when it ends; a repetition changes nothing."""

    type: Literal["Alert"] = "Alert"
    state: Literal["raised", "cleared"]
    symptom: SymptomName = Field(
        description="a symptom of the knowledge graph if there is one, e.g. confidence_collapse"
    )
    metric: str = Field(min_length=1, max_length=120, description="the metric that shows it")
    value: Real = Field(description="the metric's value now")
    expected: Real = Field(description="the bound that the value exceeds while the symptom lasts")
    tick: int = Field(ge=0, description="the newest tick of the data behind it")
    reason: str = Field(default="", max_length=REASON_LENGTH, description="one sentence with its figures")
