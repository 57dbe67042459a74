"""Notices about a run, and the message that combines several of them. This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from oven_runs.settings.notifications import Kind, Severity

MAX_LISTED: Final = 5
"""Maximum number of notices in a message, including the one shown in full. The others are only counted."""


class Notice(BaseModel):
    """An event that a user may want to know about. It contains no prompts or secrets, because the log has none."""

    model_config = ConfigDict(frozen=True)

    key: str = Field(max_length=200, description="identifies the event, so that it is sent only once")
    kind: Kind
    severity: Severity
    step: int
    title: str = Field(max_length=200, description="one line")
    text: str = Field(max_length=1200, description="agents, change and reason, in sentences")
    command: str = Field(default="", max_length=300, description="a command to respond with, if there is one")


@dataclass(frozen=True)
class Message:
    """A message that contains the last of its notices in full, and lists or counts the others."""

    run: str
    notices: Sequence[Notice]
    omitted: int = 0
    """Number of notices that were dropped from the outbox. The message only counts them."""

    @property
    def notice(self) -> Notice:
        """The notice that the message contains in full."""
        return self.notices[-1]

    @property
    def title(self) -> str:
        return f"{self.run}: {self.notice.title}"

    @property
    def other_count(self) -> int:
        """Number of notices that the message lists or counts, in addition to the one shown in full."""
        return len(self.notices) - 1 + self.omitted

    @property
    def text(self) -> str:
        lines = [self.notice.text]
        if self.notice.command:
            lines.append(self.notice.command)
        if self.other_count:
            lines.append(f"and {self.other_count} more:")
        listed_notices = self.notices[-MAX_LISTED:-1]
        lines += [f"- {n.title}" + (f" ({n.command})" if n.command else "") for n in listed_notices]
        if older := self.other_count - len(listed_notices):
            lines.append(f"- {older} older notice{'s' if older > 1 else ''}")
        return "\n".join(lines)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that a webhook receives in addition to title and text."""
        return {"run": self.run, "merged": self.other_count, **self.notice.model_dump(exclude={"title", "text"})}


_TEST_TEXT: Final = "This is a test from `oven-controller notify test`. No run is affected."
TEST_MESSAGE: Final = Message(
    "test", [Notice(key="test", kind="ended", severity="info", step=0, title="test notification", text=_TEST_TEXT)]
)
