"""A training's samples of completions: which of its groups, how much of them, and the number of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from oven_controller.errors import ConfigError
from oven_controller.settings.completions import CompletionsSettings
from oven_learner.completions.parcel import Shown, parcel_of
from oven_learner.completions.redaction import Redact, redaction
from oven_learner.completions.sample import MemberVerdict, Sample
from oven_learner.completions.schedule import SampleSchedule


class Sampling:
    """What stands between a trainer and its link. It is made once per trainer; the training may begin several times."""

    def __init__(self, shown: Shown) -> None:
        settings = shown.settings
        self.schedule = SampleSchedule(settings.every or 0, settings.groups)
        self._shown = shown
        self._number = 0

    def parcel(
        self,
        *,
        incarnation: int,
        tick: int,
        step: int,
        group: int,
        groups: int,
        prompt: Any,
        completions: Sequence[Any],
        rewards: Sequence[float | None] | None,
        advantages: Sequence[float | None],
        members: Callable[[], Sequence[MemberVerdict]],
    ) -> Callable[[], dict[str, Any]]:
        """What makes the parcel of one group, off the training thread. The fields are those of `Sample`."""
        self._number += 1
        sample = Sample(
            incarnation, self._number, tick, step, group, groups, prompt, completions, rewards, advantages, members
        )
        return partial(parcel_of, sample, self._shown)


def sampling_of(
    configured: CompletionsSettings | None, given: Mapping[str, Any] | None, redact: Redact | None
) -> Sampling | None:
    """From the run's settings (None: there is no controller), or those that a script gives in their place; None where
    no step is sampled. Raises ConfigError for settings or a redaction that cannot work."""
    try:
        settings = CompletionsSettings.model_validate(given) if given is not None else configured
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "it"
        raise ConfigError(f"completions=: {where}: {first['msg']}") from error
    if given is not None and settings is not None and not settings.redact and configured is not None:
        settings = settings.model_copy(update={"redact": configured.redact})
    function = redaction(settings.redact if settings is not None else "", redact)
    return Sampling(Shown(settings, function)) if settings is not None and settings.every else None
