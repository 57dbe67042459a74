"""An attempt at a repair: calls of tools on a workspace, the reward of each, and of the whole. No trainer in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from oven_core.errors import ProcessError
from oven_recipes.environments.instance import Instance
from oven_recipes.environments.sandboxed_tests import Framework, Outcome
from oven_recipes.environments.workspace import ToolError, Workspace

TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "list_files": ("folder",),
    "read": ("path",),
    "search": ("text",),
    "edit": ("path", "old", "new"),
    "run_tests": (),
    "submit": (),
}
"""Tool → its arguments, all of them text."""
NAMED: Final = 8
"""Failing tests that `run_tests` names; the rest are counted."""


@dataclass(frozen=True)
class ToolResult:
    """What a call led to."""

    text: str
    reward: float
    """The share of the tests that count which it turned: those that pass now less those that passed before, from -1 to
    1. Over an attempt these sum to the share that it gained."""
    failed: bool
    """The call could not be carried out."""
    digest: str
    """Of the workspace after it, and whether it was submitted: equal digests are equal states of the environment."""


class Tests(Protocol):
    """What runs an instance's tests."""

    def outcomes(self, files: Mapping[str, str], tests: Sequence[str], framework: Framework) -> dict[str, Outcome]:
        """Test → its outcome on these files."""


class RepairSession:
    """One attempt at an instance. The tests run after each edit, so that its reward is known; their files are the
    instance's, whatever the policy made of them. Raises ProcessError where none of them is there before the first one:
    an attempt without tests has no reward."""

    def __init__(self, instance: Instance, files: Mapping[str, str], tests: Tests) -> None:
        self.instance = instance
        self.submitted = False
        self._tests = tests
        self._workspace = Workspace(files, kept=instance.test_paths)
        self._outcomes = self._measured()
        if set(self._outcomes.values()) == {"missing"}:
            raise ProcessError(
                f"none of the {len(self._outcomes)} tests of {instance.instance_id} is found, so nothing says when it "
                "is solved: are the packages installed that its repository's tests need, and are their ids pytest's?"
            )
        self._run: Mapping[str, Callable[..., str]] = {
            "list_files": self._workspace.list_files,
            "read": self._workspace.read,
            "search": self._workspace.search,
            "edit": self._edit,
            "run_tests": self._run_tests,
            "submit": self._submit,
        }

    @property
    def files(self) -> Mapping[str, str]:
        """Path → text, as they are now."""
        return self._workspace.files

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Test → its outcome on the present files."""
        return self._outcomes

    @property
    def passing(self) -> int:
        """Tests that count and pass now."""
        return sum(outcome == "passed" for outcome in self._outcomes.values())

    @property
    def solved(self) -> bool:
        """It was submitted, and all of FAIL_TO_PASS and PASS_TO_PASS pass: SWE-bench's `resolved`."""
        return self.submitted and self.passing == len(self._outcomes)

    @property
    def reward(self) -> float:
        """1 where it is solved, else 0."""
        return float(self.solved)

    @property
    def feedback(self) -> str | None:
        """Which tests fail at the end of an attempt that solves nothing, what `channel.sdpo` may tell the policy; None
        where it is solved."""
        if self.solved:
            return None
        failing = [test.partition("::")[2] for test, outcome in self._outcomes.items() if outcome != "passed"]
        return f"failed: {' '.join(failing)}" if failing else "all tests pass, and it was not submitted"

    @property
    def digest(self) -> str:
        """As in `ToolResult`."""
        return f"{self._workspace.digest}{'+' if self.submitted else ''}"

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Carries a call out. Never raises for a call that is wrong: its text says what is."""
        before = self.passing
        try:
            text, failed = self._checked(tool, arguments)(**arguments), False
        except ToolError as error:
            text, failed = f"error: {error}", True
        return ToolResult(text, (self.passing - before) / len(self._outcomes), failed, self.digest)

    def _checked(self, tool: str, arguments: Mapping[str, Any]) -> Callable[..., str]:
        """Raises ToolError."""
        if tool not in TOOLS:
            raise ToolError(f"no tool {tool[:100]!r}; there are {', '.join(TOOLS)}")
        if self.submitted:
            raise ToolError("it is submitted; nothing can be changed")
        if set(arguments) != set(TOOLS[tool]):
            raise ToolError(f"{tool} takes {', '.join(TOOLS[tool]) or 'no arguments'}")
        if wrong := [name for name, value in arguments.items() if not isinstance(value, str)]:
            raise ToolError(f"{wrong[0]} has to be text")
        return self._run[tool]

    def _edit(self, path: str, old: str, new: str) -> str:
        self._workspace.edit(path, old, new)
        self._outcomes = self._measured()
        return "edited"

    def _run_tests(self) -> str:
        failing = [test.partition("::")[2] for test, outcome in self._outcomes.items() if outcome != "passed"]
        if not failing:
            return f"{len(self._outcomes)} passed"
        more = f" and {len(failing) - NAMED} more" if len(failing) > NAMED else ""
        ended = {outcome for outcome in self._outcomes.values()} & {"timeout", "died"}
        why = f" ({', '.join(sorted(ended))})" if ended else ""
        return f"{len(failing)} of {len(self._outcomes)} failed{why}: {' '.join(failing[:NAMED])}{more}"

    def _submit(self) -> str:
        self.submitted = True
        return "submitted"

    def _measured(self) -> dict[str, Outcome]:
        framework: Framework = "functions" if self.instance.files else "pytest"
        return self._tests.outcomes(self._workspace.files, self.instance.tests, framework)
