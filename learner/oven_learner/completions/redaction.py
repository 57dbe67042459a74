"""The user's function that redacts every text before it leaves the training's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from oven_core import plugins
from oven_core.errors import ConfigError

Redact: TypeAlias = Callable[[str], str]
"""Maps the text of a prompt, a completion or a reason to the text that may be shown. It is called in a thread of the
training's process, with the whole text. If it raises, or returns no text, nothing of the sample is shown."""


def redaction(configured: str, function: Redact | None) -> Redact | None:
    """Return the `function` that was passed, or the one that the settings name; None without any.

    Raises ConfigError if there are both. Raises ConfigError or UnknownNameError if the configured one cannot be loaded:
    otherwise nothing would be redacted.
    """
    if function is not None:
        if configured:
            raise ConfigError(
                f"redact= was passed, and the settings name completions.redact = {configured!r}: leave one of them out"
            )
        if not callable(function):
            raise ConfigError(f"redact= is a {type(function).__name__}: give a function from text to text")
        return function
    if not configured:
        return None
    called = "the function of completions.redact"
    return plugins.load_function("redactors", "function", configured, called=called, module="oven_redaction")
