"""Makes and applies unified diffs of text files. Pure."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from oven_core.errors import ConfigError

HUNK: Final = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
UNNAMED: Final = "the patch renames, copies or changes binary files, or modes alone; only text is patched"
SIGNATURE: Final = "-- \n"
"""The line that `git format-patch` writes after the last hunk, before its version."""


def make_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the patch from `before` to `after` in git's format: new, changed and deleted files, by path."""
    parts = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        lines = difflib.unified_diff(
            text_lines(old or ""),
            text_lines(new or ""),
            "/dev/null" if old is None else f"a/{path}",
            "/dev/null" if new is None else f"b/{path}",
        )
        text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        empty = f"{'new' if old is None else 'deleted'} file mode 100644\n"  # all that there is to say of an empty file
        parts.append(f"diff --git a/{path} b/{path}\n{text or empty}")
    return "".join(parts)


def apply_patch(files: Mapping[str, str], patch: str) -> dict[str, str]:
    """Return the files after the patch; an empty patch changes none. Raises ConfigError for an incomplete patch, for
    one that does not fit line by line (there is no fuzz), and for one that names a file outside the repository."""
    result = dict(files)
    for old, new, rows in _parts(patch):
        if old and old not in result:
            raise ConfigError(f"the patch changes {old}, and the repository has no such text file")
        if new and new != old and new in result:
            raise ConfigError(f"the patch makes {new} anew, and the repository has it already")
        text = _patched(result.pop(old, ""), rows, new or old)
        if new:
            result[new] = text
        elif text:
            raise ConfigError(f"the patch deletes {old} and leaves {len(text_lines(text))} of its lines")
    return result


def patched_paths(patch: str) -> frozenset[str]:
    """Return all files that the patch creates, changes or deletes. Raises the same errors as `apply_patch`."""
    return frozenset(path for old, new, _ in _parts(patch) for path in (old, new) if path)


def _parts(patch: str) -> Iterator[tuple[str, str, list[str]]]:
    """Return for each file its paths before and after ("" for none), and the rows from its first hunk on."""
    before, *parts = re.split(r"(?m)^diff --git (.*(?:\n|\Z))", patch)
    if re.search(r"(?m)^@@ -", before) or (before.strip() and not parts):
        raise ConfigError(
            "the patch has changes without a line `diff --git a/… b/…` before them; make it with git diff"
        )
    for named, part in zip(parts[::2], parts[1::2], strict=True):
        rows = text_lines(part)
        first = next((line_number for line_number, row in enumerate(rows) if HUNK.match(row)), len(rows))
        yield *_names(named, rows[:first]), rows[first:]


def text_lines(text: str) -> list[str]:
    """Return the lines with their ends, as git counts them: a form feed or a carriage return ends no line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _names(named: str, header: Sequence[str]) -> tuple[str, str]:
    """The paths before and after; "" where there is no file. `named`: what follows `diff --git`."""
    marks = {row.split(" ", 1)[0]: row for row in header if row.startswith(("--- ", "+++ "))}
    if any(row.startswith("copy from ") for row in header) or len(marks) == 1:
        raise ConfigError(UNNAMED)
    if marks:
        return _path(marks["---"][4:]), _path(marks["+++"][4:])
    same = re.fullmatch(r"a/(.+) b/\1\n?", named)
    mode = next((row.split(" ", 1)[0] for row in header if row.startswith(("new file ", "deleted file "))), "")
    if same is None or not mode or any(row.startswith(("GIT binary patch", "Binary files ")) for row in header):
        raise ConfigError(UNNAMED)
    path = _path(same[1])  # an empty file, of which there is no line to show
    return ("", path) if mode == "new" else (path, "")


def _path(written: str) -> str:
    """Raises ConfigError for a path that leads out of the repository, or that git had to quote."""
    path = re.split(r"[\t\n]", written)[0]
    if path == "/dev/null":
        return ""
    path = re.sub(r"^[ab]/", "", path)
    if not path or path.startswith(("/", "../")) or posixpath.normpath(path) != path or path in (".", ".."):
        raise ConfigError(f"the patch names the file {written.strip()[:200]!r}, which is not inside the repository")
    if path.startswith('"'):
        raise ConfigError(
            f"the patch names the file {written.strip()[:200]}, whose name git quotes; make the patch with "
            "`git -c core.quotePath=false diff`, or leave that file out"
        )
    return path


def _patched(text: str, rows: Sequence[str], path: str) -> str:
    lines, done, line_number = text_lines(text), list[str](), 0
    for start, changes in _hunks(rows, path):
        if not line_number <= start <= len(lines):
            raise ConfigError(f"the patch does not fit {path}: a hunk begins after line {start} of {len(lines)} lines")
        done += lines[line_number:start]
        line_number = start
        for kind, content in changes:
            if kind != "+":
                if line_number >= len(lines) or lines[line_number] != content:
                    raise ConfigError(
                        f"the patch does not fit {path}: line {line_number + 1} is not {content.strip()[:80]!r}"
                    )
                line_number += 1
            if kind != "-":
                done.append(content)
    whole = [*done, *lines[line_number:]]
    if any(not line.endswith("\n") for line in whole[:-1]):
        raise ConfigError(f"the patch of {path} ends a line without a newline, and more lines follow it")
    return "".join(whole)


def _hunks(rows: Sequence[str], path: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Return each hunk: how many lines of the old file precede it, and its own lines with their marks. Raises
    ConfigError for a hunk with other lines than it counts."""
    number = 0
    while number < len(rows) and rows[number] != SIGNATURE:
        hunk = HUNK.match(rows[number])
        number += 1
        if hunk is not None:
            removed, added = (1 if hunk[group] is None else int(hunk[group]) for group in (2, 4))
            start, changes = int(hunk[1]) - (removed > 0), list[tuple[str, str]]()
            while removed or added:
                kind, content, number = _change(rows, number)
                removed, added = removed - (kind in " -"), added - (kind in " +")
                if not kind or removed < 0 or added < 0:
                    raise ConfigError(
                        f"the patch of {path} was cut, or its hunk at line {hunk[1]} counts its lines wrong"
                    )
                changes.append((kind, content))
            yield start, changes
        elif rows[number - 1].strip():
            raise ConfigError(f"the patch of {path} has a line outside its hunks: {rows[number - 1].strip()[:80]!r}")


def _change(rows: Sequence[str], number: int) -> tuple[str, str, int]:
    """Return the mark of a hunk's line ("" if it is not one), its text, and the index of the next line."""
    row = rows[number] if number < len(rows) else ""
    if row == "\n":  # an editor stripped the space of an empty line
        row = " \n"
    kind = row[:1] if row[:1] in (" ", "-", "+") else ""
    content = row[1:].removesuffix("\n") + "\n"  # the patch's own last line may lack it
    if number + 1 < len(rows) and rows[number + 1].startswith("\\"):
        return kind, content.removesuffix("\n"), number + 2
    return kind, content, number + 1
