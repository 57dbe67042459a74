"""Selects groups of completions for the monitor and converts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from oven_core import plugins
from oven_core.errors import ConfigError, reason
from oven_learner.completions.sample import Redact, Sample, parcel_of
from oven_runs.settings.completions import CompletionsSettings


class SampleSchedule:
    """Selects steps at a fixed interval, and cycles through the groups of their batches. It draws no random
    numbers, because that would change the training."""

    def __init__(self, every: int, groups: int) -> None:
        """`groups`: maximum groups per selected step."""
        self.next = 0
        """The step count at which the next sample is due, a plain number because it is read at every step."""
        self._every, self._groups = every, groups
        self._turn = 0

    def restart(self) -> None:
        self.next = 0

    def take(self, count: int, groups: int) -> range:
        """Return the groups of a step that is due, as numbers modulo `groups`, the number of its groups."""
        self.next = count + self._every
        first = self._turn
        self._turn += min(self._groups, groups)
        return range(first, self._turn)


class Sampling:
    """Settings of one trainer for showing completions, shared by all its trainings."""

    def __init__(self, settings: CompletionsSettings, redact: Redact | None) -> None:
        self.schedule = SampleSchedule(settings.every or 0, settings.groups)
        self._settings, self._redact = settings, redact
        self.number = 0
        """The number of samples so far."""

    def parcel(
        self,
        position: Callable[[], Mapping[str, int]],
        numbers: tuple[int, int, int, int, int],
        advantages: Sequence[float | None],
        sample: Callable[[], Sample],
    ) -> dict[str, Any]:
        """Convert one group into plain values. Called outside the training thread.

        `position` is the client's method, `numbers` holds the sample's number (from 1), tick, step, group and the count
        of groups, and `sample` reads values that no longer change.
        """
        number, tick, step, group, groups = numbers
        incarnation = position()["incarnation"]
        fields = {"incarnation": incarnation, "number": number, "tick": tick, "step": step}
        fields |= {"group": group, "groups": groups}
        return parcel_of(fields, sample(), advantages, self._settings, self._redact)


def sampling_of(
    configured: CompletionsSettings | None, script_settings: Mapping[str, Any] | None, redact: Redact | None
) -> Sampling | None:
    """Return the settings for showing completions, or None.

    `script_settings` replace those `configured` for the run (None without a controller). Raises ConfigError for invalid
    settings or an unusable redaction.
    """
    try:
        settings = CompletionsSettings.model_validate(script_settings) if script_settings is not None else configured
    except ValidationError as error:
        raise ConfigError(f"completions=: {reason(error)}") from error
    if script_settings is not None and settings is not None and not settings.redact and configured is not None:
        settings = settings.model_copy(update={"redact": configured.redact})
    function = redaction(settings.redact if settings is not None else "", redact)
    return Sampling(settings, function) if settings is not None and settings.every else None


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
