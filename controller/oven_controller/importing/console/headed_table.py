"""Read the tables that programs print row by row: a line with the names of the columns, and later lines of numbers.

Ultralytics prints one for the training and one for the validation of each epoch, spaCy one for the whole run, and so do
fastai, skorch and the notebooks of transformers. Progress bars after the last column do not matter.
"""

from __future__ import annotations

import re

from oven_controller.importing.console.line_parser import Record

_COUNTERS = {"e": "epoch", "epoch": "epoch", "#": "step", "step": "step", "iter": "step", "iteration": "step"}
"""Kinds of counters by the names of their columns in lower case. A table begins with one of them."""
_HEADER_START = re.compile(r"\s*(?:e|epoch|step|iter|iteration|class|classes)\s", re.IGNORECASE)
_BAR = re.compile(r":\s+\d+%.*$")
"""A progress bar after the last column."""
_GAP = re.compile(r"\s{2,}|\t")
"""The space between two columns whose names may have spaces."""
_CELL = re.compile(
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf))[GMK%]?|(?P<time>[\d:.]+s?)|[-–—+]|none",
    re.IGNORECASE | re.ASCII,
)
"""A number with or without a unit; or a time or a mark, which are not measurements."""
_COUNT = re.compile(r"(\d{1,15})(?:/\d+)?", re.ASCII)
_MIN_COLUMNS = 3
_ALL_CLASSES = "all"
"""The first cell of the row with the means over all classes in Ultralytics' table of the validation."""
_SPACY = ["E", "#"]
"""The first columns of spaCy's table. It evaluates on the development data before each row."""
_SIZES = ("val_Images", "val_Instances", "val_Labels")
"""Columns of the same table with the size of the validation data."""
_YOLO_NAMES = {"P": "precision", "R": "recall"}


class HeadedTable:
    """The newest header of a log, and the rows under it."""

    def __init__(self) -> None:
        self._columns: dict[int, list[str]] = {}
        """The names of the columns by their number, because spaces may be a part of names, or separate them."""
        self._has_classes = False

    def read(self, line: str) -> Record | None:
        """Return the measurements of a row under the newest header, or None for any other line."""
        if _HEADER_START.match(line) and self._read_header(line):
            return None
        start = line.lstrip()[:1]
        if not self._columns or not (start == "a" if self._has_classes else start.isdecimal()):
            return None
        cells = _BAR.sub("", line).split()
        names = self._columns.get(len(cells))
        return self._read_row(names, cells) if names else None

    def _read_header(self, line: str) -> bool:
        text = _BAR.sub("", line).strip()
        words = text.split()
        if len(words) < _MIN_COLUMNS or any(_CELL.fullmatch(word) or word[-1] in ":=|," for word in words):
            return False
        self._has_classes = words[0].lower().startswith("class")
        self._columns = {len(columns): self._names(columns) for columns in (words, _GAP.split(text))}
        return True

    def _names(self, columns: list[str]) -> list[str]:
        if columns[: len(_SPACY)] == _SPACY:
            return [name if name in _SPACY or name.startswith("LOSS") else f"val_{name}" for name in columns]
        return [f"val_{name}" for name in _grouped(columns)] if self._has_classes else columns

    def _read_row(self, names: list[str], cells: list[str]) -> Record | None:
        row = Record()
        for name, cell in zip(names, cells, strict=True):
            counter = _COUNTERS.get(name.lower())
            if counter and (count := _COUNT.fullmatch(cell)):
                row.counters[counter] = int(count[1])
                continue
            if self._has_classes and (cell == _ALL_CLASSES or name in _SIZES):
                continue
            match = _CELL.fullmatch(cell)
            if match is None:
                return None
            if match["number"]:
                row.values[name] = float(match["number"])
        return row if row.values and (row.counters or self._has_classes) else None


def _grouped(columns: list[str]) -> list[str]:
    """Return the names of Ultralytics' columns `Box(P`, `R`, `mAP50`, `mAP50-95)`. Those of groups other than `Box`,
    such as `Mask(P`, get its first letter."""
    names, group = [], ""
    for column in columns:
        before, bracket, name = column.rpartition("(")
        group = before if bracket else group
        name = name.rstrip(")")
        suffix = f"({group[0]})" if group and group != "Box" else ""
        names.append(_YOLO_NAMES.get(name, name) + suffix)
        if column.endswith(")"):
            group = ""
    return names
