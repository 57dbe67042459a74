"""The configuration of a teacher, written in Python or as an item of a YAML list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_runs.settings.layers import read_text
from oven_runs.settings.strict_yaml import load_yaml, place_of, problem_of

Kind = Literal["small", "big", "diffusion"]
Strategy = Literal["resident", "quantized", "offload", "hybrid"]
Bits = Literal[4, 8]


class TeacherConfig(BaseModel):
    """The configuration of a named teacher. Pass its model as `model`, or a folder or Hub id as `model_name`.

    The kinds `small` and `big` are causal language models. The kind does not determine their strength. Teachers that
    are added later count as stronger. A `diffusion` teacher needs its number of joint coordinates (`joint_dim`) and
    the size of its intent vector (`intent_dim`). `strategy` determines where the weights are stored, and `bits` applies
    to the strategy "quantized". `tokenizer` is a loaded tokenizer, or its folder or Hub id. By default it is the one in
    the model's folder, if any. Raises UnknownNameError for an unknown kind or strategy, otherwise ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(min_length=1)
    kind: Kind = "small"
    model_name: str | None = Field(default=None, min_length=1, description="a folder, or an id on the Hub")
    model: Any = Field(default=None, description="a model in memory; it is frozen, and quantized in place")
    tokenizer: Any = None
    strategy: Strategy = "resident"
    bits: Bits = 8
    joint_dim: int | None = Field(default=None, gt=0)
    intent_dim: int | None = Field(default=None, gt=0)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problem = reason(error).replace("Value error, ", "").replace("Input should be", "it should be")
            raise ConfigError(f"teacher {values.get('name')!r}: {problem}") from error

    @field_validator("kind", "strategy", mode="before")
    @classmethod
    def _check_name(cls, value: Any, info: Any) -> Any:
        if info.field_name == "kind":
            label, choices = "kind of teacher", get_args(Kind)
        else:
            label, choices = "teacher strategy", get_args(Strategy)
        if value not in choices:
            raise UnknownNameError(label, str(value), choices)
        return value

    @model_validator(mode="after")
    def _check_consistency(self) -> TeacherConfig:
        if (self.model is None) == (self.model_name is None):
            raise ValueError("pass either `model` or `model_name`")
        if self.model is not None and not callable(getattr(self.model, "parameters", None)):
            raise ValueError(f"`model` is a {type(self.model).__name__}; to load one, pass its folder as `model_name`")
        dimensions = {"joint_dim": self.joint_dim, "intent_dim": self.intent_dim}
        set_names = [name for name, value in dimensions.items() if value is not None]
        if self.kind != "diffusion":
            if set_names:
                raise ValueError(f"{' and '.join(set_names)} are for diffusion teachers, but this one is {self.kind!r}")
            return self
        missing_names = [name for name in dimensions if name not in set_names]
        if missing_names:
            raise ValueError(f"a diffusion teacher needs {' and '.join(missing_names)}")
        if self.tokenizer is not None:
            raise ValueError("a diffusion teacher uses no tokens; omit the tokenizer")
        return self


def read_teachers(path: Path | str) -> list[TeacherConfig]:
    """Read teachers, from weak to strong, from a YAML list of mappings. Raises ConfigError or UnknownNameError."""
    path = Path(path)
    try:
        entries = load_yaml(read_text(path, "the file of teachers"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{place_of(error)}: {problem_of(error)}") from error
    return parse_teachers(entries, str(path))


def parse_teachers(entries: Any, source: str = "teachers") -> list[TeacherConfig]:
    """Build TeacherConfigs from parsed values. Errors name `source`."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ConfigError(f"{source} is a {type(entries).__name__}; expected a list with `- name: …` for each teacher")
    configs: list[TeacherConfig] = []
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, TeacherConfig):
            configs.append(entry)
            continue
        if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
            raise ConfigError(f"{source}, entry {number}: {str(entry)[:60]!r} is not a mapping with `name` and a model")
        configs.append(TeacherConfig(**entry))
    names = [config.name for config in configs]
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise ConfigError(f"{source} names {', '.join(sorted(duplicates))} twice; each teacher needs its own name")
    return configs
