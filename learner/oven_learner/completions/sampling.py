"""A training's samples of completions: which of its groups, how much of them, and the number of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from oven_core.errors import ConfigError
from oven_learner.completions.parcel import Shown, parcel_of
from oven_learner.completions.redaction import Redact, redaction
from oven_learner.completions.sample import Place, Sample
from oven_runs.settings.completions import CompletionsSettings


class SampleSchedule:
    """Every so many steps; the groups take turns, so that the same place in the batch is not shown each time. It draws
    nothing: the training's random numbers are the training's."""

    def __init__(self, every: int, groups: int) -> None:
        """`groups`: of such a step, at most."""
        self.next = 0
        """The count of steps from which on the next is due; it is read at every step, so it is a plain number."""
        self._every, self._groups = every, groups
        self._turn = 0

    def restart(self) -> None:
        """Steps are counted anew."""
        self.next = 0

    def take(self, count: int, groups: int) -> range:
        """The groups of a step that is due, of as many as it has; they are to be taken modulo that."""
        self.next = count + self._every
        first = self._turn
        self._turn += min(self._groups, groups)
        return range(first, self._turn)


class Sampling:
    """What stands between a trainer and its link. It is made once per trainer; the training may begin several times."""

    def __init__(self, shown: Shown) -> None:
        settings = shown.settings
        self.schedule = SampleSchedule(settings.every or 0, settings.groups)
        self._shown = shown
        self.number = 0
        """Samples so far."""

    def parcel(
        self,
        position: Callable[[], Mapping[str, int]],
        place: tuple[int, int, int, int, int],
        advantages: Sequence[float | None],
        sample: Callable[[], Sample],
    ) -> dict[str, Any]:
        """The parcel of one group. Called off the training thread, which gives no more than it takes to find the group:
        `position` is the client's, `place` has the fields of `Place`, and `sample` reads what does not change any
        more."""
        return parcel_of(position()["incarnation"], Place(*place), sample(), advantages, self._shown)


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
