"""The file of teachers: which models to ask at an agent's states, their families, and the budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import ConfigError
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import ModelEndpoint, Price, catalogue, endpoint_of
from oven_runs.settings.language_models import ModelSettings
from oven_runs.settings.layers import Layer, read_text, read_yaml, validated
from oven_runs.settings.strict_yaml import key_lines

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""Names of teachers and families, which are shown in files and terminals."""


class TeacherSettings(ModelSettings):
    """One teacher: a model, and how it is asked."""

    family: str = Field(
        pattern=NAME, description="who trained it; teachers of one family count as one voter, for they err alike"
    )
    samples: int = Field(default=1, ge=1, le=32, description="answers per state; APIs give no distribution of actions")
    max_tokens: int = Field(default=1024, ge=1, le=131_072, description="maximum tokens of an answer")
    temperature: float | None = Field(default=None, ge=0, le=2, description="none: the API's default")
    deadline_s: float = Field(
        default=120.0, gt=0, le=3600, description="seconds that a request may take, with its retries"
    )
    lanes: int = Field(default=4, ge=1, le=64, description="traces asked about in parallel, each state after state")
    price: Price | None = Field(default=None, description="US dollars per million tokens; none: the catalogue's")

    def described(self) -> dict[str, object]:
        """Return the settings that must be the same for all replies in one file."""
        names = ("provider", "model", "base_url", "family", "samples", "max_tokens", "temperature")
        return {name: getattr(self, name) for name in names}


class TeachersFile(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    teachers: dict[str, TeacherSettings] = Field(min_length=1, max_length=16)
    budget: BudgetSettings = BudgetSettings()
    """For all teachers together, and all runs of `traces replay` into one file of replies."""
    providers: str = Field(default="", description="a file of providers that extends the packaged catalogue")

    @property
    def families(self) -> tuple[str, ...]:
        """Each family once, sorted."""
        return tuple(sorted({teacher.family for teacher in self.teachers.values()}))

    def endpoints(self) -> Mapping[str, ModelEndpoint]:
        """Return each teacher's model endpoint with its price. Raises ConfigError for an unknown provider."""
        providers = catalogue(self.providers)
        endpoints = {}
        for name, teacher in self.teachers.items():
            endpoint = endpoint_of(name, teacher, providers, f"teachers.{name}")
            endpoints[name] = endpoint if teacher.price is None else replace(endpoint, price=teacher.price)
        return endpoints


def read_teachers(path: Path) -> TeachersFile:
    """Read the file. Raises ConfigError if it cannot be read or has invalid settings."""
    content = read_yaml(path, "the file of teachers")
    layers = [Layer(str(path), content, "file", key_lines(read_text(path)))]
    teachers_file = validated(TeachersFile, content, "", layers, None)
    for name in teachers_file.teachers:
        if not re.fullmatch(NAME, name):
            raise ConfigError(
                f"{path}: {name!r} cannot be a teacher's name; use up to 64 of a-z, A-Z, 0-9, '_', '-' and '.', "
                "starting with a letter or a digit"
            )
    return teachers_file
