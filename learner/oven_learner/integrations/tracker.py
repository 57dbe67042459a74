"""An accelerate tracker: `Accelerator(log_with="oven")`, or the object `OvenTracker()`. It only observes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from oven_learner.tap.tap import Arguments, Logged, Tap

NAME = "oven"


class OvenTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is not typed
    """Publishes what the script passes to `accelerator.log`, on the main process. Steps are merged and metrics named as
    by `run --tap`. Without a controller it does nothing, and says so once."""

    name = NAME
    requires_logging_directory = False

    def __init__(self, run_name: str = "", **_: Any) -> None:
        """accelerate passes the project's name, which the run does not need."""
        super().__init__()
        self._tap = Tap()
        self._record = self._tap.wrap("accelerate", _store_nothing, "values", _read)

    @property
    def tracker(self) -> Tap:
        return self._tap

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Do nothing: the run's log has no place for a configuration."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        self._record(values, step)

    def finish(self) -> None:
        """Publish what is left, and the end of the run."""
        self._tap.close()


def _store_nothing(values: Mapping[str, Any], step: int | None) -> None:
    """accelerate's other trackers store the values."""


def _read(values: Any, arguments: Arguments) -> Logged:
    return [(values, arguments["step"])]


def register(tracking: Any) -> None:
    """Make the tracker known to accelerate's module `tracking` by its name."""
    tracking.LOGGER_TYPE_TO_CLASS.setdefault(NAME, OvenTracker)
