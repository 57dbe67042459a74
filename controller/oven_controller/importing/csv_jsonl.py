"""Reader of tables: CSV with a header, or JSON objects, one per line.

W&B, Lightning and many training loops export these.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oven_controller.importing.importer import CUT, Logged, Recording
from oven_controller.importing.rows import STEPS, TIMES, nearest, number
from oven_core.errors import ConfigError, reason

_CSV, _JSONL = (".csv",), (".jsonl", ".ndjson")
_PARTS = ("__MIN", "__MAX")
"""What W&B's panels export beside each value."""


class History:
    summary = "a history exported as .csv or .jsonl, with a column `step`, `global_step` or `_step`"

    def find(self, source: Path) -> Path | None:
        return source if source.is_file() and source.suffix in _CSV + _JSONL else None

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        return Recording(_table(path, step) if path.suffix in _CSV else _objects(path, skipped, step))


def time_of(values: Mapping[str, object]) -> float | None:
    return next((found for name in TIMES if (found := number(values.get(name))) is not None), None)


def _table(path: Path, named: str | None) -> Iterator[Logged]:
    with path.open(newline="", encoding="utf-8-sig") as text:
        lines = csv.reader(text)
        try:
            header = _metrics(path, next(lines, []))
            step = _step(path, header, named)
            when = next((header.index(name) for name in TIMES if name in header), None)
            kept = [(place, name) for place, name in enumerate(header) if name]
            for cells in lines:
                cells += [""] * (len(header) - len(cells))
                values = {name: _cell(cells[place]) for place, name in kept}
                yield Logged(_cell(cells[step]), values, number(_cell(cells[when])) if when is not None else None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}, line {lines.line_num + 1}: {error}; it is not CSV in UTF-8, export it as one"
            ) from error


def _cell(cell: str) -> object:
    """A blank is not a measurement."""
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell


def _metrics(path: Path, header: Sequence[str]) -> list[str]:
    """Without "<run> - " before each name and the spread after it, as W&B's panels write them. Raises ConfigError on
    several runs in one table."""
    runs = {name.split(" - ", 1)[0] for name in header if " - " in name}
    if len(runs) > 1:
        raise ConfigError(f"{path} holds several runs: {', '.join(sorted(runs)[:5])}; export one of them")
    return ["" if name.endswith(_PARTS) else name.split(" - ", 1)[-1] for name in header]


def _step(path: Path, header: Sequence[str], named: str | None) -> int:
    """The column with the step."""
    if named is not None and named not in header:
        raise ConfigError(
            f"--rename {named}=step: there is no {named} in {path}; {nearest(named, filter(None, header))}"
        )
    found = named or next((name for name in STEPS if name in header), None)
    if found is None:
        what = f"its columns are {', '.join(filter(None, header[:8]))}" if any(header) else "it is empty"
        remedy = "; --rename NAME=step says which of them has the step" if any(header) else ""
        raise ConfigError(f"{path} has no column named {', '.join(STEPS)}: {what}{remedy}")
    return list(header).index(found)


def _objects(path: Path, skipped: Counter[str], named: str | None) -> Iterator[Logged]:
    key = named or ""
    with path.open("rb") as lines:
        for place, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the program was killed while it wrote
                    skipped[CUT] += 1
                    return
                raise ConfigError(f"{path}, line {place} is not JSON: {reason(error)}") from error
            if not isinstance(values, dict):
                raise ConfigError(f'{path}, line {place} is not a JSON object; write e.g. {{"step": 1, "loss": 2.5}}')
            key = key or next((name for name in STEPS if name in values), "")
            yield Logged(values.get(key), values, time_of(values))


IMPORTER = History()
