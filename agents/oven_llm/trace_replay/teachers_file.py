"""The file of teachers: which models are asked at an agent's states, of which families, and what may be spent."""

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
"""Of a teacher or a family: it stands in files and on terminals."""


class TeacherSettings(ModelSettings):
    """One teacher: a model, as an agent's, and how it is asked."""

    family: str = Field(
        pattern=NAME, description="who trained it; teachers of one family are one voter, for they err alike"
    )
    samples: int = Field(default=1, ge=1, le=32, description="answers a state; APIs give no distribution of actions")
    max_tokens: int = Field(default=1024, ge=1, le=131_072, description="tokens of an answer at most")
    temperature: float | None = Field(default=None, ge=0, le=2, description="none: the API's own")
    deadline_s: float = Field(
        default=120.0, gt=0, le=3600, description="seconds a request may take, its retries included"
    )
    lanes: int = Field(default=4, ge=1, le=64, description="traces that are with it at a time, each state after state")
    price: Price | None = Field(
        default=None, description="US dollars per million tokens; none: as the catalogue has it"
    )

    def described(self) -> dict[str, object]:
        """What has to be the same for answers to stand in one file."""
        names = ("provider", "model", "base_url", "family", "samples", "max_tokens", "temperature")
        return {name: getattr(self, name) for name in names}


class TeachersFile(BaseModel):
    """A whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    teachers: dict[str, TeacherSettings] = Field(min_length=1, max_length=16)
    budget: BudgetSettings = BudgetSettings()
    """Over all teachers, and over all calls of `traces replay` into one file of replies."""
    providers: str = Field(default="", description="a file of providers, laid over the packaged catalogue")

    @property
    def families(self) -> tuple[str, ...]:
        """Each once, sorted."""
        return tuple(sorted({teacher.family for teacher in self.teachers.values()}))

    def endpoints(self) -> Mapping[str, ModelEndpoint]:
        """Teacher → the model behind its address, with its price. Raises ConfigError for an unknown provider."""
        known = catalogue(self.providers)
        found = {}
        for name, teacher in self.teachers.items():
            asked = endpoint_of(name, teacher, known, f"teachers.{name}")
            found[name] = asked if teacher.price is None else replace(asked, price=teacher.price)
        return found


def read_teachers(path: Path) -> TeachersFile:
    """Raises ConfigError for a file that cannot be read, and for what does not fit the form."""
    given = read_yaml(path, "the file of teachers")
    layers = [Layer(str(path), given, "file", key_lines(read_text(path)))]
    found = validated(TeachersFile, given, "", layers, None)
    for name in found.teachers:
        if not re.fullmatch(NAME, name):
            raise ConfigError(
                f"{path}: {name!r} cannot be a teacher's name; use up to 64 of a-z, A-Z, 0-9, '_', '-' and '.', the "
                "first a letter or a digit"
            )
    return found
