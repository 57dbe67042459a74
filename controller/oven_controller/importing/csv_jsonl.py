"""Import tables: CSV with a header, or one JSON object per line.

W&B, Lightning and many training loops export such files.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from oven_controller.importing.importer import CUT, Logged, Recording
from oven_controller.importing.rows import STEPS, TIMES, nearest, number, time_of
from oven_core.errors import ConfigError, reason

_CSV, _JSONL = (".csv",), (".jsonl", ".ndjson")
_PARTS = ("__MIN", "__MAX")
"""Suffixes of the additional columns in exports of W&B panels."""


class History:
    """Importer of a metrics history in CSV or JSON Lines."""

    summary = "a history exported as .csv or .jsonl, with a column `step`, `global_step` or `_step`"

    def find(self, source: Path) -> Path | None:
        return source if source.is_file() and source.suffix in _CSV + _JSONL else None

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        return Recording(_table(path, step) if path.suffix in _CSV else _objects(path, skipped, step))


def _table(path: Path, step_name: str | None) -> Iterator[Logged]:
    with path.open(newline="", encoding="utf-8-sig") as text:
        lines = csv.reader(text)
        try:
            header = _column_names(path, next(lines, []))
            step = _step_column(path, header, step_name)
            time = next((header.index(name) for name in TIMES if name in header), None)
            columns = [(index, name) for index, name in enumerate(header) if name]
            for cells in lines:
                cells += [""] * (len(header) - len(cells))
                values = {name: _cell(cells[index]) for index, name in columns}
                yield Logged(_cell(cells[step]), values, number(_cell(cells[time])) if time is not None else None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}, line {lines.line_num + 1}: {error}; it is not CSV in UTF-8; export it in that format"
            ) from error


def _cell(cell: str) -> object:
    if not cell:
        return None  # not measured
    try:
        return float(cell)
    except ValueError:
        return cell


def _column_names(path: Path, header: Sequence[str]) -> list[str]:
    """Remove the prefix "<run> - " of W&B panels from column names, and blank the names of their additional columns.

    Raises ConfigError if the table has several runs.
    """
    runs = {name.split(" - ", 1)[0] for name in header if " - " in name}
    if len(runs) > 1:
        raise ConfigError(f"{path} contains several runs: {', '.join(sorted(runs)[:5])}; export one of them")
    return ["" if name.endswith(_PARTS) else name.split(" - ", 1)[-1] for name in header]


def _step_column(path: Path, header: Sequence[str], step_name: str | None) -> int:
    if step_name is not None and step_name not in header:
        raise ConfigError(
            f"--rename {step_name}=step: there is no {step_name} in {path}; {nearest(step_name, filter(None, header))}"
        )
    name = step_name or next((name for name in STEPS if name in header), None)
    if name is None:
        content = f"its columns are {', '.join(filter(None, header[:8]))}" if any(header) else "it is empty"
        remedy = "; --rename NAME=step says which of them has the step" if any(header) else ""
        raise ConfigError(f"{path} has no column named {', '.join(STEPS)}: {content}{remedy}")
    return list(header).index(name)


def _objects(path: Path, skipped: Counter[str], step_name: str | None) -> Iterator[Logged]:
    key = step_name or ""
    with path.open("rb") as lines:
        for line_number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the program was killed while it wrote
                    skipped[CUT] += 1
                    return
                raise ConfigError(f"{path}, line {line_number} is not JSON: {reason(error)}") from error
            if not isinstance(values, dict):
                raise ConfigError(
                    f'{path}, line {line_number} is not a JSON object; write e.g. {{"step": 1, "loss": 2.5}}'
                )
            key = key or next((name for name in STEPS if name in values), "")
            yield Logged(values.get(key), values, time_of(values))


IMPORTER = History()
