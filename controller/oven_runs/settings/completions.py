"""Settings of sampled completions: how often, how much, and what goes over them before they are shown."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from oven_runs.settings.named_functions import checked_function

OF_RECIPES = 10
"""Steps between two samples of a recipe, whose data are generated: no text of them is secret."""


class CompletionsSettings(BaseModel):
    """Prompts and completions that operators and monitors may look at. They are in their own stream and never in
    the run's log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int | None = Field(
        default=None,
        ge=0,
        le=10**9,
        description=f"optimizer steps between two samples; 0: none are taken; none: {OF_RECIPES} of a recipe, and 0 of "
        "your own script",
    )
    groups: int = Field(default=1, ge=1, le=8, description="groups of such a step that are shown, one after another")
    completions: int = Field(default=16, ge=1, le=64, description="completions of a group that are shown at most")
    characters: int = Field(
        default=4000,
        ge=100,
        le=100_000,
        description="characters of a prompt or completion that are shown; of a longer one its beginning and end",
    )
    redact: str = Field(
        default="",
        description="a function from text to text that every prompt, completion and reason goes through before it "
        "leaves the training: an entry point of the group oven.redactors, or FILE.py:FUNCTION",
    )

    def steps_between(self, *, attached: bool) -> int:
        """Steps between two samples; 0: none. `attached`: the training is a script of the user's own."""
        return (0 if attached else OF_RECIPES) if self.every is None else self.every


def with_checked_redaction(completions: CompletionsSettings) -> CompletionsSettings:
    """The same with the path of its function's file made absolute. Raises ConfigError for one that is not there."""
    if not completions.redact:
        return completions
    named = checked_function(
        "completions.redact", "the function of completions.redact", "function", "redactors", completions.redact
    )
    return completions.model_copy(update={"redact": named})
