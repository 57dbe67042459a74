"""Settings for sampled completions: how often to sample, how many, and how to redact them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from oven_core.plugins import resolve_function_name

ATTACHED = "attached"
"""The recipe's name when the training script is the user's own."""
RECIPE_INTERVAL = 10
"""Default steps between two samples in a recipe. A recipe's data are generated, so no text is secret."""


class CompletionsSettings(BaseModel):
    """Settings for sampled prompts and completions, which go to operators and monitors but never to the log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int | None = Field(
        default=None,
        ge=0,
        le=10**9,
        description="optimizer steps between two samples; if 0, there are no samples; by default "
        f"{RECIPE_INTERVAL} for a recipe, and 0 for your own script",
    )
    groups: int = Field(default=1, ge=1, le=8, description="groups per sample, shown one after another")
    completions: int = Field(default=16, ge=1, le=64, description="maximum completions shown per group")
    characters: int = Field(
        default=4000,
        ge=100,
        le=100_000,
        description="maximum characters of a prompt or completion; longer ones are truncated in the middle",
    )
    redact: str = Field(
        default="",
        description="a function from text to text, applied to every prompt, completion and reason before it leaves the "
        "training: an entry point of the group oven.redactors, or FILE.py:FUNCTION",
    )

    def steps_between(self, *, attached: bool) -> int:
        """Return the steps between two samples, or 0 for none. `attached` means that the script is the user's own."""
        if self.every is not None:
            return self.every
        return 0 if attached else RECIPE_INTERVAL


def with_checked_redaction(completions: CompletionsSettings) -> CompletionsSettings:
    """Return the settings with an absolute path of the redacting function's file. Raises ConfigError."""
    if not completions.redact:
        return completions
    function = resolve_function_name(
        "completions.redact", "the function of completions.redact", "function", "redactors", completions.redact
    )
    return completions.model_copy(update={"redact": function})
