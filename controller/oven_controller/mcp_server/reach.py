"""Which runs the server may look at, and by which key it acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import find_run


@dataclass(frozen=True)
class Reach:
    """What the command line gave. `run`: the only run that tools are about; None: any of this machine's."""

    run: str | None = None
    at: Endpoint = field(default_factory=Endpoint)
    agent_files: Path | None = None
    """A folder: Python files of agents in it may be backtested, which runs them. None: installed agents only."""

    def find(self, run: str | None, *, running: bool = False) -> RunAccess:
        """The run that a call means. Raises ConfigError, UnknownNameError."""
        if run is not None and self.run is not None and run != self.run:
            raise ConfigError(
                f"this server is about run {self.run!r} alone; leave `run` out, or start another for {run!r}"
            )
        return find_run(run or self.run, self.at, running=running)

    @property
    def elsewhere(self) -> bool:
        """Whether its run is on another machine."""
        return self.at.completed().named

    def agent(self, name: str) -> str:
        """What the backtest loads an agent by: an installed one's name, or a file in the folder that was given. Raises
        ConfigError, UnknownNameError."""
        if not name.endswith(".py"):
            if "/" in name:
                raise ConfigError(f"{name!r} is neither an installed agent's name nor a Python file")
            return name
        if self.agent_files is None:
            raise ConfigError(
                f"{name!r} is a file, and to load it is to run it: start the server with --agent-files FOLDER, and "
                "files in that folder may be backtested"
            )
        folder = self.agent_files.resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise ConfigError(f"{name!r} is not in {folder}, the folder of --agent-files")
        if not path.is_file():
            known = [str(one.relative_to(folder)) for one in sorted(folder.glob("*.py"))]
            raise UnknownNameError("agent file", name, known)
        return str(path)
