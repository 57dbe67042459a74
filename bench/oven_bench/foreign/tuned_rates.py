"""The tuned learning rates of the scripts, from `tuned.json` next to them.

`bench foreign --tune` of the tag `evidence-1` made the file: it tried rates, each three times the last, on two seeds
that no figure is reported on, until the best one was between two others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pydantic import BaseModel, ValidationError

from oven_bench.foreign.case_grid import Cell
from oven_core.errors import ConfigError

FILE = "tuned.json"
"""In the scripts' folder."""
Key: TypeAlias = tuple[str, str, int, float]
"""(kind, optimizer, width, initial standard deviation)."""


class _Model(BaseModel):
    kind: str
    optimizer: str
    width: int
    init_std: float


class _Tuning(BaseModel):
    model: _Model
    rate: float


class _Table(BaseModel):
    models: list[_Tuning]


def key(cell: Cell) -> Key:
    return cell.kind.name, cell.optimizer, cell.width, cell.init_std


def read(folder: Path) -> Mapping[Key, float]:
    """The tuned rate of each model. Raises ConfigError if the file is missing or is not a table of rates."""
    path = folder / FILE
    try:
        table = _Table.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path} is not a table of tuned rates ({error}); restore it from the checkout") from error
    return {(t.model.kind, t.model.optimizer, t.model.width, t.model.init_std): t.rate for t in table.models}
