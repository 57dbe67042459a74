"""The user's function that every text goes through before it leaves the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from oven_core import plugins
from oven_core.errors import ConfigError

Redact: TypeAlias = Callable[[str], str]
"""From a prompt, a completion or a reason to what may be shown of it. It is called in a thread of the training's
process, with the whole text. Where it raises, or returns anything but a text, nothing of the sample is shown."""


def redaction(named: str, given: Redact | None) -> Redact | None:
    """The function that was passed, else the one that the settings name; None: there is none. Raises ConfigError where
    both are there, and it or UnknownNameError for one that cannot be loaded: then nothing would be redacted."""
    if given is not None:
        if named:
            raise ConfigError(
                f"redact= was passed, and the settings name completions.redact = {named!r}: leave one of them out"
            )
        if not callable(given):
            raise ConfigError(f"redact= is a {type(given).__name__}: give a function from text to text")
        return given
    if not named:
        return None
    called = "the function of completions.redact"
    return plugins.load_function("redactors", "function", named, called=called, module="oven_redaction")
