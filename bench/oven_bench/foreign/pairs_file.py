"""The file of results: what it was made with, and a line per pair."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from oven_bench.foreign.case import Case
from oven_bench.foreign.paired_run import Pair
from oven_bench.foreign.script_run import Run, Task
from oven_bench.foreign.tuned_rates import FILE
from oven_bench.results_file import Kept

PACKAGES: Final = ("oven_controller", "oven_agents", "oven_learner", "oven_kg", "oven_bench")
LIBRARIES: Final = ("torch", "transformers", "trl", "accelerate")
Key = tuple[str, str, Case]
_PAIR: Final = TypeAdapter(Pair)


class Header(BaseModel):
    """The first line. A later call must have an equal one to continue the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bench: Literal["foreign"] = "foreign"
    code: str
    """A digest of the code that decides and of the scripts."""
    libraries: dict[str, str]
    settings: dict[str, int | float | bool | None]
    """Options that change what is played; not which of the cells and seeds."""


def header(scripts: Path, settings: Mapping[str, int | float | bool | None]) -> Header:
    versions = {"python": sys.version.split()[0], **{name: version(name) for name in LIBRARIES}}
    return Header(code=code_digest([*_package_folders(), scripts]), libraries=versions, settings=dict(settings))


def code_digest(folders: list[Path]) -> str:
    """16 hex digits over the names and contents of all files in them, without version control. Tuned rates are left
    out: each case has its own."""
    found = hashlib.blake2b(digest_size=8)
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name != FILE:
                data = path.read_bytes()
                found.update(f"{path.relative_to(folder).as_posix()} {len(data)} ".encode() + data)
    return found.hexdigest()


def _package_folders() -> Iterator[Path]:
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None:
            yield from (Path(place) for place in spec.submodule_search_locations or ())


def key(task: Task) -> Key:
    return task.cell, task.start, task.case


class ResultsFile(Kept[Pair]):
    """A file of pairs. Raises ConfigError if it is another file, or was made with other code or settings."""

    def __init__(self, path: Path, made_with: Header) -> None:
        super().__init__(path, made_with, _PAIR)

    @property
    def pairs(self) -> list[Pair]:
        """Those that were there before."""
        return self.rows

    @property
    def done(self) -> set[Key]:
        """The tasks that were finished before."""
        return {key(pair.task) for pair in self.pairs}

    def append(self, pair: Pair) -> None:
        """Without the names of folders."""
        super().append(replace(pair, controlled=_bare(pair.controlled), alone=pair.alone and _bare(pair.alone)))


def _bare(run: Run) -> Run:
    return replace(run, task=replace(run.task, script=Path(run.task.script).name, logs=None))
