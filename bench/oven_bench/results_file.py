"""Results as JSON lines: a header that says what they were made with, then one line per result."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from oven_core.errors import ConfigError

R = TypeVar("R")


class Kept(Generic[R]):
    """A results file that a later call continues. Raises ConfigError if it is another file or its header differs."""

    def __init__(self, path: Path, made_with: BaseModel, adapter: TypeAdapter[R]) -> None:
        self._path, self._adapter = path, adapter
        self.rows: list[R] = []
        """Results that were in the file when it was opened."""
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made_with.model_dump_json() + "\n")
            return
        self._compare(lines[0], made_with)
        if not lines[-1].endswith("\n"):  # the last call was cut off here; that result is made again
            lines.pop()
            path.write_text("".join(lines))
        try:
            self.rows = [adapter.validate_json(line) for line in lines[1:]]
        except ValidationError as error:
            raise ConfigError(f"{path} has a line that is not a result of this bench; give another file") from error

    def append(self, row: R) -> None:
        with self._path.open("a") as file:
            file.write(self._adapter.dump_json(row).decode() + "\n")

    def _compare(self, first: str, made_with: BaseModel) -> None:
        try:
            before = type(made_with).model_validate_json(first)
        except ValidationError as error:
            raise ConfigError(f"{self._path} is not a results file of this bench; give another file") from error
        one, other = before.model_dump(), made_with.model_dump()
        if differing := [name for name in one if one[name] != other[name]]:
            raise ConfigError(
                f"{self._path} was made with other {' and '.join(differing)}; give another file, or play it all again"
            )
