"""The runs and agent files that the MCP server may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import find_run


@dataclass(frozen=True)
class AllowedRuns:
    """The runs and agent files that the command line allows the tools to use."""

    run: str | None = None
    """The only run that tools may use. None allows all runs on this machine."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    agent_files: Path | None = None
    """The folder of Python files that may be backtested, and thus executed. None allows only installed agents."""

    def find(self, run: str | None, *, running: bool = False) -> RunAccess:
        """Return access to the run that a call names. Raises ConfigError or UnknownNameError."""
        if run is not None and self.run is not None and run != self.run:
            raise ConfigError(
                f"this server only serves run {self.run!r}; omit `run`, or start another server for {run!r}"
            )
        return find_run(run or self.run, self.endpoint, running=running)

    @property
    def is_remote(self) -> bool:
        """Whether the run is on another machine."""
        return self.endpoint.with_environment().is_remote

    def resolve_agent(self, name: str) -> str:
        """Return an installed agent's name, or a path in `agent_files`. Raises ConfigError or UnknownNameError."""
        if not name.endswith(".py"):
            if "/" in name:
                raise ConfigError(f"{name!r} is neither an installed agent's name nor a Python file")
            return name
        if self.agent_files is None:
            raise ConfigError(
                f"{name!r} is a file, and a backtest would execute it: start the server with --agent-files FOLDER to "
                "allow the files in that folder"
            )
        folder = self.agent_files.resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise ConfigError(f"{name!r} is not in {folder}, the folder of --agent-files")
        if not path.is_file():
            files = [str(file.relative_to(folder)) for file in sorted(folder.glob("*.py"))]
            raise UnknownNameError("agent file", name, files)
        return str(path)
