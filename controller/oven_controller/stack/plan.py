"""Which processes a run consists of, each with its command, environment and log. Nothing is started here."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oven_controller.home import RunFolder
from oven_controller.settings import AgentSpec
from oven_controller.stack.process import Child

LEARNER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads cost 7 to 10 times on cores that are shared
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What the learner gets unless the user's own environment says otherwise."""


@dataclass(frozen=True)
class Service:
    """One process of the stack. `foreign`: a program that cannot watch its parent, so a guard does."""

    name: str
    command: tuple[str, ...]
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    foreign: bool = False

    async def start(self) -> Child:
        return await Child.start(self.name, self.command, self.log, env=self.env, foreign=self.foreign)


@dataclass(frozen=True)
class Plan:
    """How the processes of one run are started."""

    folder: RunFolder
    url: str
    otlp: str = ""

    def mesh(self) -> Service:
        env = self.environment("mesh") | {"OVEN_HISTORY_CREDS": self._key("history")}
        return self._own("mesh", "mesh", (), env)

    def agent(self, spec: AgentSpec) -> Service:
        env = self.environment("agent", spec.name)
        return self._own(f"agent-{spec.name}", "agent", (spec.target, "--name", spec.name), env)

    def kg(self) -> Service:
        return self._own("kg", "kg", (), self.environment("kg"))

    def member(self, name: str) -> Service:
        return self._own(f"member-{name}", "member", ("--name", name), self.environment("member", name))

    def learner(self) -> Service:
        defaults = {key: value for key, value in LEARNER_ENVIRONMENT.items() if key not in os.environ}
        return self._own("learner", "learner", (), self.environment("learner") | defaults)

    def script(self, command: Sequence[str]) -> Service:
        env = self.environment("learner") | {"PYTHONUNBUFFERED": "1"}
        return Service("script", tuple(command), self.folder.logs / "script.log", env, foreign=True)

    def environment(self, role: str, name: str = "") -> dict[str, str]:
        """What a process needs to take part; a script of the user's gets the learner's."""
        found = {
            "OVEN_URL": self.url,
            "OVEN_RUN": self.folder.run,
            "OVEN_RUN_DIR": str(self.folder.path),
            "OVEN_CREDS": self._key(role, name),
        }
        return found | ({"OVEN_OTLP": self.otlp} if self.otlp else {})

    def _key(self, role: str, name: str = "") -> str:
        path = self.folder.credentials(role, name)  # type: ignore[arg-type]
        return str(path) if path else ""

    def _own(self, name: str, process: str, args: Sequence[str], env: Mapping[str, str]) -> Service:
        return Service(name, own_command(process, *args), self.folder.logs / f"{name}.log", dict(env))


def own_command(process: str, *args: str) -> tuple[str, ...]:
    """How one of our own processes is called, by its entry point in `oven.processes`."""
    return (sys.executable, "-P", "-m", "oven_controller.stack.entry", process, *args)


def export_lines(env: Mapping[str, str]) -> list[str]:
    """The environment as lines for a shell."""
    return [f"export {key}={shlex.quote(value)}" for key, value in env.items()]
