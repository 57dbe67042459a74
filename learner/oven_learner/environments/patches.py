"""Unified diffs of text files, made and applied. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final

from oven_controller.errors import ConfigError

HUNK: Final = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def make_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What turns `before` into `after`, as git writes it: new, changed and deleted files, by path."""
    parts = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        lines = difflib.unified_diff(
            (old or "").splitlines(keepends=True),
            (new or "").splitlines(keepends=True),
            "/dev/null" if old is None else f"a/{path}",
            "/dev/null" if new is None else f"b/{path}",
        )
        text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        parts.append(f"diff --git a/{path} b/{path}\n{text}")
    return "".join(parts)


def apply_patch(files: Mapping[str, str], patch: str) -> dict[str, str]:
    """The files after it. Raises ConfigError for a patch that does not fit, line by line: none is applied nearby."""
    result = dict(files)
    for part in re.split(r"(?m)^diff --git .*\n", patch)[1:]:
        old, new = _names(part)
        text = _patched(result.pop(old, "") if old else "", part, new or old)
        if new:
            result[new] = text
    return result


def _names(part: str) -> tuple[str, str]:
    """The paths before and after; "" where there is no file."""
    found = {}
    for mark in ("---", "+++"):
        match = re.search(rf"(?m)^{re.escape(mark)} (?:[ab]/)?([^\t\n]+)", part)
        if match is None:
            raise ConfigError("the patch renames, copies or changes binary files, or modes alone; only text is patched")
        found[mark] = "" if match[1] == "/dev/null" else match[1]
    return found["---"], found["+++"]


def _patched(text: str, part: str, path: str) -> str:
    lines, done, at = text.splitlines(keepends=True), [], 0
    rows = part.splitlines(keepends=True)
    for number, row in enumerate(rows):
        if hunk := HUNK.match(row):
            start = max(0, int(hunk[1]) - (hunk[2] != "0"))
            done += lines[at:start]
            at = start
        elif row[:1] in (" ", "-", "+") and not row.startswith(("--- ", "+++ ")) and _inside(rows, number):
            content = row[1:]
            if number + 1 < len(rows) and rows[number + 1].startswith("\\"):
                content = content.removesuffix("\n")
            if row[0] != "+":
                if at >= len(lines) or lines[at] != content:
                    raise ConfigError(f"the patch does not fit {path}: line {at + 1} is not {content.strip()[:80]!r}")
                at += 1
            if row[0] != "-":
                done.append(content)
    return "".join([*done, *lines[at:]])


def _inside(rows: list[str], number: int) -> bool:
    """Whether a row is in a hunk: before the first one are headers."""
    return any(HUNK.match(row) for row in rows[:number])
