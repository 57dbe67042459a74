"""The JSON output of `review`. docs/protocol/review.schema.json is its schema.

Fields may be added. A field is removed, or changes its meaning, only with a new major version of this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from oven_agents.diagnosis.engine import unjudged
from oven_agents.diagnosis.finding import Finding
from oven_agents.review.findings_page import ReviewedRun

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class ReviewReport(BaseModel):
    """The findings in one log."""

    model_config = ConfigDict(frozen=True)

    run: str = Field(description="the file or the run, as it was named on the command line")
    observations: int = Field(ge=1, description="number of rows")
    first_step: int = Field(description="lowest step")
    last_step: int = Field(description="highest step")
    notes: tuple[str, ...] = Field(description="for people: how the log was read")
    unjudged: str | None = Field(description="why the rules could not judge the log; null if they could")
    findings: tuple[Finding, ...] = Field(
        description="most important first, at most one of each kind; empty if nothing is wrong"
    )

    @classmethod
    def of_run(cls, run: ReviewedRun) -> ReviewReport:
        record = run.record
        return cls(
            run=run.name,
            observations=record.observation_count,
            first_step=record.step_range[0],
            last_step=record.step_range[1],
            notes=tuple(note.strip() for note in run.notes),
            unjudged=unjudged(record) or None,
            findings=tuple(run.findings),
        )


class UnreadLog(BaseModel):
    """A log that could not be read, next to others that could."""

    model_config = ConfigDict(frozen=True)

    run: str = Field(description="the file or the run, as it was named on the command line")
    error: str = Field(description="what is wrong with it, with a remedy")


class ReviewReports(BaseModel):
    """The findings in several logs."""

    model_config = ConfigDict(frozen=True)

    runs: tuple[ReviewReport | UnreadLog, ...] = Field(
        description="in the order of the command line, then the logs that could not be read"
    )

    @classmethod
    def of_runs(cls, runs: Sequence[ReviewedRun], errors: dict[str, str]) -> ReviewReports:
        unread_logs = (UnreadLog(run=source, error=error) for source, error in errors.items())
        return cls(runs=(*map(ReviewReport.of_run, runs), *unread_logs))


def review_schema() -> dict[str, Any]:
    """Return the JSON Schema of the output: one report for one log, or a list of them for several."""
    schema = TypeAdapter(ReviewReport | ReviewReports).json_schema(mode="serialization")
    return {"$schema": DIALECT, "title": "The output of `oven-controller review --json`", **schema}
