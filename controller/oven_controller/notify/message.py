"""What is sent: one notice, and how many of its kind waited with it. Its JSON is a webhook's body. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from oven_runs.settings.notifications import Kind, Severity

VERSION: Final = 1
TOLD: Final = 5
"""Notices that a merged message names, its own among them; the others are counted."""


class Notice(BaseModel):
    """One thing that somebody may want to hear of. Its words hold no prompt and no secret: the log, where they come
    from, has neither."""

    model_config = ConfigDict(frozen=True)

    key: str = Field(max_length=200, description="the same thing has the same key, and is told once")
    kind: Kind
    severity: Severity
    seq: int = Field(description="sequence of the event in the log; 0: it is about what the log lacks")
    time: datetime = Field(description="when that event was logged")
    tick: int
    step: int
    title: str = Field(max_length=200, description="one line")
    text: str = Field(max_length=1200, description="who, what and why, in sentences")
    command: str = Field(default="", max_length=300, description="what a person can type about it; empty: nothing")


class Message(BaseModel):
    """One notice, and what was merged into it."""

    model_config = ConfigDict(frozen=True)

    v: Literal[1] = VERSION
    id: str = Field(description="run and key of the newest notice")
    run: str
    notice: Notice = Field(description="the newest")
    more: int = Field(default=0, ge=0, description="others that were not sent by themselves")
    since: datetime | None = Field(default=None, description="when the first of those was logged")
    others: tuple[Notice, ...] = Field(default=(), description="the newest of those, oldest first")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def title(self) -> str:
        """One line that names the run."""
        return f"{self.run}: {self.notice.title}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The whole for a person."""
        parts = [self.notice.text]
        if self.notice.command:
            parts.append(self.notice.command)
        if self.more and self.since is not None:
            parts.append(f"and {self.more} more since {clock(self.since)}:")
            parts += [f"- {one.title}" + (f" ({one.command})" if one.command else "") for one in self.others]
            if (rest := self.more - len(self.others)) > 0:
                parts.append(f"- {rest} older")
        return "\n".join(parts)


def message(run: str, notices: Sequence[Notice], count: int, since: datetime) -> Message:
    """Of the newest of `count` notices of one kind, oldest first; the first of all was logged at `since`."""
    newest = notices[-1]
    more = count - 1
    return Message(
        id=f"{run}:{newest.key}",
        run=run,
        notice=newest,
        more=more,
        since=since if more else None,
        others=tuple(notices[:-1]),
    )


def clock(time: datetime) -> str:
    """Hour and minute."""
    return f"{time.astimezone(UTC):%H:%M} UTC"
