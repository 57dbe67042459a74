"""The outcome of the episodes: one row each, as JSON lines in a folder, appended as they come and read when resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oven_bench.gym.episode_schedule import HORIZON
from oven_bench.gym.task_table import Kind
from oven_core.errors import ConfigError, reason

FILE = "episodes.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One episode of an arm, with what its score is made of. Losses are `quality()`: lower is better."""

    family: str
    kind: Kind
    healthy: bool
    held_out: bool
    seed: int
    arm: str
    onset: int
    loss: float
    """Under the arm."""
    nothing: float
    """The same case left alone."""
    twin: float
    """The same seed without a fault, after as many gradient steps."""
    steps: int
    interventions: int
    seconds: float
    """Of one core, the shared beginning apart."""
    kept: Any = None
    """What the arm kept of it."""
    horizon: int = HORIZON
    """Gradient steps from the onset to the end."""

    @property
    def key(self) -> tuple[str, int, str]:
        return self.family, self.seed, self.arm


def read(folder: Path) -> list[Row]:
    """Of earlier calls; none if there were none. A last line that was cut off by a kill does not count. Raises
    ConfigError when the file is something else."""
    file = folder / FILE
    if not file.exists():
        return []
    lines = file.read_text().splitlines(keepends=True)
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines) and not line.endswith("\n"):
                file.write_text("".join(lines[:-1]))
                break
            raise ConfigError(
                f"{file}, line {number}, is not an episode of this gym ({reason(error)}); give --resume another folder"
            ) from error
    return rows


def append(folder: Path, rows: Iterable[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a") as file:
        file.writelines(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)


def by_case(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    """(family, seed) → arm → row."""
    cases: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.family, row.seed), {})[row.arm] = row
    return cases
