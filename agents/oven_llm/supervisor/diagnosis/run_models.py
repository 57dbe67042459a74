"""The two models of the agent `supervisor`, by the run's settings, with one budget for both."""

from __future__ import annotations

from pathlib import Path

from oven_agents.runtime.companion import Surroundings
from oven_llm.providers.budget import Budget
from oven_llm.supervisor.models import ModelHandler, ProviderHandler
from oven_runs.home.model_spend import NAME, Cap
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of, key_of
from oven_runs.settings.language_models import SupervisorSettings


class ConfiguredModels:
    """Raises ConfigError for a provider that there is not, and without a model's key."""

    def __init__(self, around: Surroundings, settings: SupervisorSettings) -> None:
        assert settings.model is not None
        self._around, self._settings = around, settings
        self._wanted = {"supervisor.model": settings.model}
        if settings.worker is not None:
            self._wanted["supervisor.worker"] = settings.worker
        known = catalogue(around.providers_file)
        for at, model in self._wanted.items():
            key_of(at, endpoint_of(around.name, model, known, at), at=at)
        self._budget: Budget | None = None
        self._handlers: list[ModelHandler] = []

    def connected(self) -> tuple[ModelHandler, ModelHandler]:
        """The supervisor and its worker. Importing their SDKs takes a second or two, the first time. Raises ConfigError
        where an SDK is not installed, or the budget caps US dollars and a price is not known."""
        if not self._handlers:
            settings, owner = self._settings, self._around.name
            cap = Cap(BudgetSettings(usd=settings.usd, tokens=settings.tokens), "supervisor", owner)
            self._budget = Budget([cap], Path(self._around.folder) / NAME, owner)
            self._handlers = [
                ProviderHandler.connected(
                    model,
                    self._around.providers_file,
                    at,
                    budget=self._budget,
                    account=f"{owner}/{at.rpartition('.')[2]}",
                    timeout_s=settings.seconds,
                )
                for at, model in self._wanted.items()
            ]
        return self._handlers[0], self._handlers[-1]

    @property
    def cost_usd(self) -> float | None:
        """Of the run so far; None where a price is not known."""
        return self._budget.cost_usd if self._budget is not None else 0.0

    def close(self) -> None:
        """The budget stays open: calls that were left behind book what they come to."""
        for handler in self._handlers:
            handler.close()
