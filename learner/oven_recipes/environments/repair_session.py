"""One attempt at a repair task. The policy's tool calls change a workspace, and each call has a reward."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from oven_core.errors import ProcessError
from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.sandboxed_tests import Framework, Outcome

MAX_CHARACTERS: Final = 4000
"""Maximum length of the text that a call returns, in characters. A context must have space for several results."""
MAX_RESULTS: Final = 50
"""Maximum number of search results, in lines."""


class ToolError(Exception):
    """A failed tool call. The message is for the policy, and the attempt continues."""


class Workspace:
    """A set of files by path. `protected` files, such as tests, cannot be changed."""

    def __init__(self, files: Mapping[str, str], protected: Collection[str] = ()) -> None:
        self._files = dict(files)
        self._protected = frozenset(protected)

    @property
    def files(self) -> Mapping[str, str]:
        """Path → text of the current files."""
        return self._files

    @property
    def digest(self) -> str:
        """Digest of paths and contents, 16 hexadecimal digits. Equal workspaces have equal digests."""
        data = json.dumps(sorted(self._files.items())).encode("utf-8", "surrogatepass")
        return hashlib.sha256(data).hexdigest()[:16]

    def list_files(self, folder: str) -> str:
        """Return the paths under a folder, one per line. An empty string, "." and "/" mean the repository's root.
        Raises ToolError for an unknown folder."""
        root = _normalise(folder) if folder not in ("", ".", "/") else ""
        matches = [path for path in sorted(self._files) if not root or path.startswith(f"{root}/") or path == root]
        if not matches:
            raise ToolError(f"no folder {folder[:200]}")
        return _truncate("\n".join(matches))

    def read(self, path: str) -> str:
        """Return a file's text, truncated if it is long. Raises ToolError if the file does not exist."""
        return _truncate(self._text(path))

    def search(self, text: str) -> str:
        """Return the lines that contain `text`, as `path:line: text`. Raises ToolError for an empty string."""
        if not text:
            raise ToolError("text is empty; pass the text to search for")
        lines = [
            f"{path}:{number}: {line}"
            for path, content in sorted(self._files.items())
            for number, line in enumerate(content.splitlines(), 1)
            if text in line
        ]
        more = f"\n({len(lines) - MAX_RESULTS} more)" if len(lines) > MAX_RESULTS else ""
        return _truncate("\n".join(lines[:MAX_RESULTS]) + more) if lines else "nothing found"

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace `old`, which must occur once, with `new`. Raises ToolError for an invalid edit."""
        text = self._text(path)
        if _normalise(path) in self._protected:
            raise ToolError(f"{path} contains tests, which cannot be changed")
        if not old:
            raise ToolError("old is empty; pass the text to replace")
        if (occurrences := text.count(old)) != 1:
            raise ToolError(f"old occurs {occurrences} times in {path}; it must occur once")
        if old == new:
            raise ToolError("old and new are the same")
        self._files[_normalise(path)] = text.replace(old, new)

    def _text(self, path: str) -> str:
        try:
            return self._files[_normalise(path)]
        except KeyError:
            raise ToolError(f"no file {path[:200]}") from None


def _normalise(path: str) -> str:
    return posixpath.normpath(path).lstrip("/")


def _truncate(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}\n({len(text) - MAX_CHARACTERS} more characters)"


TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "list_files": ("folder",),
    "read": ("path",),
    "search": ("text",),
    "edit": ("path", "old", "new"),
    "run_tests": (),
    "submit": (),
}
"""The tools and their arguments, which are all strings."""
MAX_NAMED_TESTS: Final = 8
"""Maximum number of failing tests that `run_tests` names. The rest are counted."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call."""

    text: str
    reward: float
    """The change in the share of passing tests, from -1 to 1. The rewards of all calls add up to the change over the
    whole attempt."""
    failed: bool
    """Whether the call was invalid."""
    digest: str
    """Digest of the attempt's state after the call. The state consists of the workspace, and of whether the attempt was
    submitted. Equal digests mean equal states."""


class Tests(Protocol):
    """Tests that can be run on a set of files."""

    def outcomes(self, files: Mapping[str, str], tests: Sequence[str], framework: Framework) -> dict[str, Outcome]:
        """Return the outcome of each test on these files."""


class RepairSession:
    """An attempt at an instance. The tests run after each edit, to compute the edit's reward. The policy cannot change
    the instance's test files. Raises ProcessError if none of the tests exists at the start, because an attempt without
    tests has no reward."""

    def __init__(self, instance: Instance, files: Mapping[str, str], tests: Tests) -> None:
        self.instance = instance
        self.submitted = False
        self._tests = tests
        self._workspace = Workspace(files, protected=instance.test_paths)
        self._outcomes = self._run_all_tests()
        if set(self._outcomes.values()) == {"missing"}:
            raise ProcessError(
                f"none of the {len(self._outcomes)} tests of {instance.instance_id} was found; check that the packages "
                "for its tests are installed, and that their ids are pytest's"
            )

    @property
    def files(self) -> Mapping[str, str]:
        """Path → text of the current files."""
        return self._workspace.files

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Test → its outcome on the current files."""
        return self._outcomes

    @property
    def passing_count(self) -> int:
        """Number of tests that currently pass."""
        return sum(outcome == "passed" for outcome in self._outcomes.values())

    @property
    def solved(self) -> bool:
        """Whether the attempt was submitted and all tests pass, which SWE-bench calls `resolved`."""
        return self.submitted and self.passing_count == len(self._outcomes)

    @property
    def feedback(self) -> str | None:
        """The failing tests, as a hint for the training channel `channel.sdpo`. None if the attempt solved the task."""
        if self.solved:
            return None
        failing = self._failing_tests()
        return f"failed: {' '.join(failing)}" if failing else "all tests pass, and it was not submitted"

    @property
    def digest(self) -> str:
        """Digest of the attempt's state, see `ToolResult.digest`."""
        return f"{self._workspace.digest}{'+' if self.submitted else ''}"

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a tool call. If the call is invalid, the result's text describes the error."""
        passing_before = self.passing_count
        try:
            text, failed = self._find_tool(tool, arguments)(**arguments), False
        except ToolError as error:
            text, failed = f"error: {error}", True
        reward = (self.passing_count - passing_before) / len(self._outcomes)
        return ToolResult(text, reward, failed, self.digest)

    def _find_tool(self, tool: str, arguments: Mapping[str, Any]) -> Callable[..., str]:
        """Return the tool's method. Raises ToolError for an unknown tool or invalid arguments."""
        if tool not in TOOLS:
            raise ToolError(f"no tool {tool[:100]!r}; there are {', '.join(TOOLS)}")
        if self.submitted:
            raise ToolError("it is submitted; nothing can be changed")
        if set(arguments) != set(TOOLS[tool]):
            raise ToolError(f"{tool} takes {', '.join(TOOLS[tool]) or 'no arguments'}")
        if invalid_names := [name for name, value in arguments.items() if not isinstance(value, str)]:
            raise ToolError(f"{invalid_names[0]} must be a string")
        # Edits, test runs and submissions are methods of this class. The other tools are methods of the workspace.
        method: Callable[..., str] = getattr(self, f"_{tool}", None) or getattr(self._workspace, tool)
        return method

    def _edit(self, path: str, old: str, new: str) -> str:
        self._workspace.edit(path, old, new)
        self._outcomes = self._run_all_tests()
        return "edited"

    def _run_tests(self) -> str:
        failing = self._failing_tests()
        if not failing:
            return f"{len(self._outcomes)} passed"
        more = f" and {len(failing) - MAX_NAMED_TESTS} more" if len(failing) > MAX_NAMED_TESTS else ""
        unfinished_outcomes = {*self._outcomes.values()} & {"timeout", "died"}
        details = f" ({', '.join(sorted(unfinished_outcomes))})" if unfinished_outcomes else ""
        return f"{len(failing)} of {len(self._outcomes)} failed{details}: {' '.join(failing[:MAX_NAMED_TESTS])}{more}"

    def _failing_tests(self) -> list[str]:
        return [test.partition("::")[2] for test, outcome in self._outcomes.items() if outcome != "passed"]

    def _submit(self) -> str:
        self.submitted = True
        return "submitted"

    def _run_all_tests(self) -> dict[str, Outcome]:
        framework: Framework = "functions" if self.instance.files else "pytest"
        return self._tests.outcomes(self._workspace.files, self.instance.tests, framework)
