"""The environment `repair` for TRL. Its public methods are the policy's tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from oven_core.errors import ProcessError, UnknownNameError, reason
from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.repair_session import RepairSession, Tests, ToolResult


class RepairTools(ABC):
    """The policy's tools. Subclasses run the calls in this process or on an OpenEnv server."""

    _fault: str | None = None
    """Description of a failure of the sandbox or the server during this attempt, if there was one."""
    newest_call: ToolResult | None = None
    """Result of the newest call. The recorder reads the call's reward and digest from it."""

    @abstractmethod
    def reset(self, **row: Any) -> None:
        """Start an attempt at the instance that the row's `instance_id` names. Raises UnknownNameError if there is no
        such instance."""

    @property
    @abstractmethod
    def solved(self) -> bool:
        """Whether the attempt was submitted and all of the instance's tests pass."""

    @property
    @abstractmethod
    def feedback(self) -> str | None:
        """Failing tests of an unsolved attempt, see `RepairSession.feedback`."""

    def get_reward(self) -> float:
        """Return 1 if the attempt solved the task, otherwise 0. Raises ProcessError if the sandbox or the server failed
        during a call, because then the policy is not to blame for a failed attempt."""
        if self._fault is not None:
            raise ProcessError(f"the attempt has no reward, because the environment failed: {self._fault}")
        return float(self.solved)

    @abstractmethod
    def _call(self, tool: str, **arguments: str) -> ToolResult:
        """Run a tool call."""

    def list_files(self, folder: str) -> str:
        """List the files under a folder.

        Args:
            folder: Path of the folder; "." is the repository.
        """
        return self._run_tool("list_files", folder=folder)

    def read(self, path: str) -> str:
        """Read a file.

        Args:
            path: Path of the file.
        """
        return self._run_tool("read", path=path)

    def search(self, text: str) -> str:
        """Find the lines that contain a string.

        Args:
            text: The string to look for.
        """
        return self._run_tool("search", text=text)

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a string in a file with another one.

        Args:
            path: Path of the file.
            old: The string to replace. It must occur exactly once.
            new: The replacement.
        """
        return self._run_tool("edit", path=path, old=old, new=new)

    def run_tests(self) -> str:
        """Run the tests, and name those that fail."""
        return self._run_tool("run_tests")

    def submit(self) -> str:
        """Submit the repair. Nothing can be changed afterwards."""
        return self._run_tool("submit")

    def _run_tool(self, tool: str, **arguments: str) -> str:
        try:
            self.newest_call = self._call(tool, **arguments)
        except Exception as error:
            self._fault = reason(error)
            raise
        return self.newest_call.text


class RepairEnvironment(RepairTools):
    """Tools that run in this process. `read_files` returns an instance's files as path → text."""

    def __init__(
        self, instances: Mapping[str, Instance], read_files: Callable[[Instance], Mapping[str, str]], tests: Tests
    ) -> None:
        self._instances, self._read_files, self._tests = instances, read_files, tests
        self._session: RepairSession | None = None

    def reset(self, **row: Any) -> None:
        instance_id = row["instance_id"]
        if instance_id not in self._instances:
            raise UnknownNameError("instance", instance_id, self._instances)
        instance = self._instances[instance_id]
        self._session = RepairSession(instance, self._read_files(instance), self._tests)
        self.newest_call = self._fault = None

    @property
    def session(self) -> RepairSession:
        """The attempt. Raises RuntimeError before the first `reset`."""
        if self._session is None:
            raise RuntimeError("the environment has no attempt yet; call reset first")
        return self._session

    @property
    def solved(self) -> bool:
        return self.session.solved

    @property
    def feedback(self) -> str | None:
        return self.session.feedback

    def _call(self, tool: str, **arguments: str) -> ToolResult:
        return self.session.call(tool, arguments)
