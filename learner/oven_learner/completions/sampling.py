"""Selects the groups of completions that the monitor shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from oven_core import plugins
from oven_core.errors import ConfigError, reason
from oven_learner.completions.sample_message import Redact, Sample, group_fields
from oven_runs.settings.completions import CompletionsSettings


class SampleNumbers(NamedTuple):
    """The numeric fields of a sample's message, except for the incarnation."""

    number: int  # number of the sample, from 1
    tick: int
    step: int
    group: int  # index of the group in its batch
    groups: int  # number of groups in the batch


class SampleSchedule:
    """A schedule that selects steps at a fixed interval, and cycles through the groups of their batches. It does not
    use random numbers, because that would change the training."""

    def __init__(self, interval: int, groups_per_sample: int) -> None:
        """`groups_per_sample` is the maximum number of groups per selected step."""
        self.due_step = 0
        """Step count from which the next sample is due. It is a plain attribute, because it is read at every step."""
        self._interval, self._groups_per_sample = interval, groups_per_sample
        self._next_group = 0

    def restart(self) -> None:
        self.due_step = 0

    def take(self, step_count: int, group_count: int) -> range:
        """Select groups of a step that is due. The numbers keep increasing, so take them modulo `group_count`."""
        self.due_step = step_count + self._interval
        first = self._next_group
        self._next_group += min(self._groups_per_sample, group_count)
        return range(first, self._next_group)


class Sampling:
    """The schedule and settings with which one trainer shows completions. All its training runs share them."""

    def __init__(self, settings: CompletionsSettings, redact: Redact | None) -> None:
        self.schedule = SampleSchedule(settings.every or 0, settings.groups)
        self._settings, self._redact = settings, redact
        self.sample_count = 0
        """Number of samples so far."""

    def convert(
        self,
        position: Callable[[], Mapping[str, int]],
        numbers: SampleNumbers,
        advantages: Sequence[float | None],
        sample: Callable[[], Sample],
    ) -> dict[str, Any]:
        """Convert one group into plain values. Called outside the training thread. `position` returns the training
        client's position. `sample` reads values that no longer change."""
        fields = {"incarnation": position()["incarnation"], **numbers._asdict()}
        return group_fields(fields, sample(), advantages, self._settings, self._redact)


def choose_sampling(
    run_settings: CompletionsSettings | None, script_settings: Mapping[str, Any] | None, redact: Redact | None
) -> Sampling | None:
    """Return the settings for showing completions, or None if they are not shown. `script_settings` replace the
    `run_settings`, which are None without a controller. Raises ConfigError for invalid settings or redaction."""
    try:
        settings = CompletionsSettings.model_validate(script_settings) if script_settings is not None else run_settings
    except ValidationError as error:
        raise ConfigError(f"completions=: {reason(error)}") from error
    if script_settings is not None and settings is not None and not settings.redact and run_settings is not None:
        settings = settings.model_copy(update={"redact": run_settings.redact})
    function = load_redaction(settings.redact if settings is not None else "", redact)
    return Sampling(settings, function) if settings is not None and settings.every else None


def load_redaction(name: str, function: Redact | None) -> Redact | None:
    """Return `function`, or the function that the settings name, or None if there is neither. Raises ConfigError if
    there are both. Raises ConfigError or UnknownNameError if the named function cannot be loaded, because training
    without it would show unredacted text."""
    if function is not None:
        if name:
            raise ConfigError(f"redact= and the setting completions.redact = {name!r} are both set; omit one of them")
        if not callable(function):
            raise ConfigError(f"redact= is a {type(function).__name__}; pass a function that maps text to text")
        return function
    if not name:
        return None
    description = "the function of completions.redact"
    return plugins.load_function("redactors", "function", name, description=description, module="oven_redaction")
