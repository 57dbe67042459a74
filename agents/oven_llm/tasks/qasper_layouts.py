"""QASPER's data in its layouts: the released JSON (paper id → paper), and the hub's rows, where lists of records are
records of lists. One paper comes out of either in the released form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file

MOST_BYTES: Final = 1 << 29
"""Of a data file; the largest that was released has some 30 MB."""
SOURCE: Final = "https://allenai.org/data/qasper"


def read_papers(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(paper id, paper) of a released file, or of rows in JSON, JSON lines or Parquet. Raises ConfigError."""
    if not path.exists():
        raise ConfigError(f"there is no data file {path}; download QASPER from {SOURCE}, and name the JSON with --data")
    if path.suffix == ".parquet":
        return [_of_row(path, row) for row in _parquet(path)]
    try:
        text = read_file(path, "the data file", MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the data file {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    if not text.strip():
        raise ConfigError(f"the data file {path} is empty; download it again from {SOURCE}")
    if path.suffix == ".jsonl":
        return [_of_row(path, row) for row in _lines(path, text)]
    found = _parsed(path, text)
    if isinstance(found, Mapping) and isinstance(found.get("rows"), list):  # as the hub's viewer answers
        found = [one.get("row", one) if isinstance(one, Mapping) else one for one in found["rows"]]
    if isinstance(found, list):
        return [_of_row(path, row) for row in found]
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"the data file {path} holds no papers; the released files map a paper's id to the paper")
    for key, paper in found.items():
        if not isinstance(paper, Mapping):
            raise ConfigError(f"the data file {path}: {key!r} is {str(paper)[:40]!r}, and not a paper")
    return [(str(key), dict(paper)) for key, paper in found.items()]


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the data file {path} is cut or damaged: {reason(error)}; it has {len(text.encode()):,} bytes. Download "
            f"it again from {SOURCE}"
        ) from error


def _lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ConfigError(
                    f"the data file {path} is cut or damaged at line {number}: {reason(error)}"
                ) from error


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet needs the package {error.name}: pip install 'oven-controller[kg]', or give JSON"
        ) from error
    try:
        rows: list[Any] = read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise ConfigError(f"the data file {path} is cut or damaged: {reason(error)}") from error
    return rows


def _of_row(path: Path, row: Any) -> tuple[str, dict[str, Any]]:
    """Raises ConfigError where the row has another form."""
    if not isinstance(row, Mapping) or "id" not in row:
        raise ConfigError(f"the data file {path}: {str(row)[:60]!r} is not a row of QASPER's: it has no `id`")
    paper = dict(row)
    key = str(paper.pop("id"))
    for name in ("full_text", "figures_and_tables", "qas"):
        if isinstance(paper.get(name), Mapping):
            paper[name] = _records(path, key, name, paper[name])
    for question in paper.get("qas") or ():
        if isinstance(question, dict) and isinstance(question.get("answers"), Mapping):
            question["answers"] = _records(path, key, "answers", question["answers"])
    return key, paper


def _records(path: Path, paper: str, name: str, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = {column: list(values) for column, values in columns.items() if isinstance(values, list | tuple)}
    lengths = {len(values) for values in lists.values()}
    if len(lengths) > 1:
        raise ConfigError(f"the data file {path}, paper {paper}: the columns of {name} have unlike lengths, {lengths}")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
