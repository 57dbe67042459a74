"""Base class of the agents that ask a language model."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from oven_agents.runtime.companion import RunContext
from oven_agents.sdk.agent import Agent, Notice
from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunStarted
from oven_llm.language_models.question_slot import Question, QuestionSlot, Result
from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.language_models import AuthorSettings, ModelSettings, SupervisorSettings, TunerSettings

Settings = TypeVar("Settings", TunerSettings, AuthorSettings, SupervisorSettings)


class ModelAgent(Agent, Generic[Settings, Question, Result]):
    """An agent that is off until the settings name a model. It posts questions in `slot`, and its companion answers."""

    version = "1"

    def __init__(self, section: str, settings: Settings, field: str = "llm") -> None:
        """Create an agent with default settings. In the run's settings, `section`.`field` names the model."""
        self.slot: QuestionSlot[Question, Result] = QuestionSlot()
        self.unused_counts: Counter[str] = Counter()
        """Number of replies that were not used for a vote, by reason."""
        self._section, self._field, self._name = section, field, section
        self._settings: Settings = settings
        self._off_reason = (
            f"no model is configured: set {section}.{field}, e.g. {section}: {{{field}: {{provider: claude, model: "
            "NAME}}"
        )

    def begin(self, run_context: RunContext) -> Coroutine[Any, Any, None] | None:
        """Read the settings. If they name a model, return the coroutine that asks it."""
        self._name = run_context.name
        try:
            settings = type(self._settings).model_validate(run_context.settings.get(self._section, {}))
            model: ModelSettings | None = getattr(settings, self._field)
            if model is None:
                return None
            companion = self._create_companion(run_context, settings)
        except ValidationError as error:
            self._off_reason = (
                f"the setting `{self._section}` has {error.error_count()} errors; was it written by `up`?"
            )
            return None
        except ConfigError as error:
            self._off_reason = str(error)
            return None
        self._settings, self._off_reason = settings, ""
        self.version = f"1 ({model.model})"  # type: ignore[misc]
        if not isinstance(settings, AuthorSettings):  # the knob of `author` is fixed
            self.moves = settings.actuators  # type: ignore[misc]
        return companion

    @abstractmethod
    def _create_companion(self, run_context: RunContext, settings: Settings) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers questions. Raises ConfigError if the model cannot be used."""

    @abstractmethod
    def _find_obstacle(self, run: RunStarted) -> str | None:
        """Return the reason why the agent cannot vote in this run although it has a model; None if it can vote."""

    @property
    @abstractmethod
    def _status(self) -> str:
        """The calls, cost and failures so far, as text for a notice."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        return self._off_reason or self._find_obstacle(run)

    def _abstain(self, failure: ModelFailure) -> Notice:
        return Notice(failure.kind, f"abstains: {failure}; so far {self._status}")

    def _discard_reply(self, kind: str, reason: str) -> Notice:
        """Count a reply that is not used for a vote, and return a notice with the reason."""
        self.unused_counts[kind] += 1
        return Notice(kind, f"no vote: {reason}; so far {self._status}")
