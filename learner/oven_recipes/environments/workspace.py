"""A repository's files as a policy works on them: listed, read, searched, edited. Pure: text in memory."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Collection, Mapping
from typing import Final

SHOWN: Final = 4000
"""Characters of a file, or of what a search found, that one call shows: a context has to hold several."""
FOUND: Final = 50
"""Lines that a search shows."""


class ToolError(Exception):
    """A call that cannot be carried out. Its message is for the policy, and ends no episode."""


class Workspace:
    """Files by path. `kept`: those that may not be changed, as tests."""

    def __init__(self, files: Mapping[str, str], kept: Collection[str] = ()) -> None:
        self._files = dict(files)
        self._kept = frozenset(kept)

    @property
    def files(self) -> Mapping[str, str]:
        """Path → text, as they are now."""
        return self._files

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over paths and texts: equal workspaces have equal ones."""
        data = json.dumps(sorted(self._files.items())).encode("utf-8", "surrogatepass")
        return hashlib.sha256(data).hexdigest()[:16]

    def list_files(self, folder: str) -> str:
        """Paths under a folder, one a line; an empty folder's name is the repository. Raises ToolError."""
        inside = _normal(folder) if folder not in ("", ".", "/") else ""
        found = [path for path in sorted(self._files) if not inside or path.startswith(f"{inside}/") or path == inside]
        if not found:
            raise ToolError(f"no folder {folder[:200]}")
        return _shown("\n".join(found))

    def read(self, path: str) -> str:
        """A file's text, cut where it is long. Raises ToolError."""
        return _shown(self._text(path))

    def search(self, text: str) -> str:
        """`path:line: text` of the lines that hold `text`. Raises ToolError."""
        if not text:
            raise ToolError("search for what? text is empty")
        hits = [
            f"{path}:{number}: {line}"
            for path, whole in sorted(self._files.items())
            for number, line in enumerate(whole.splitlines(), 1)
            if text in line
        ]
        more = f"\n({len(hits) - FOUND} more)" if len(hits) > FOUND else ""
        return _shown("\n".join(hits[:FOUND]) + more) if hits else "nothing found"

    def edit(self, path: str, old: str, new: str) -> None:
        """Puts `new` in the place of `old`, which has to occur once. Raises ToolError."""
        text = self._text(path)
        if _normal(path) in self._kept:
            raise ToolError(f"{path} holds tests, which cannot be changed")
        if not old:
            raise ToolError("old is empty; give the text to replace")
        if (times := text.count(old)) != 1:
            raise ToolError(f"old occurs {times} times in {path}; it has to occur once")
        if old == new:
            raise ToolError("old and new are the same")
        self._files[_normal(path)] = text.replace(old, new)

    def _text(self, path: str) -> str:
        try:
            return self._files[_normal(path)]
        except KeyError:
            raise ToolError(f"no file {path[:200]}") from None


def _normal(path: str) -> str:
    return posixpath.normpath(path).lstrip("/")


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n({len(text) - SHOWN} more characters)"
