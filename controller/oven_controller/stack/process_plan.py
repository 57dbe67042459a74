"""Defines the command, environment and log of each process of a run, without starting it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from oven_core.errors import ConfigError, ProcessError
from oven_core.security import tls
from oven_runs.home import relaunch
from oven_runs.home.run_folder import RunFolder
from oven_runs.process.child_process import Child
from oven_runs.settings.agent_options import option_arguments
from oven_runs.settings.agents import AgentSpec

LEARNER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads cost 7 to 10 times as much on shared cores
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Default environment variables of the learner. The user's own values take precedence."""


@dataclass(frozen=True)
class Service:
    """One process of the stack, with its command, environment and log."""

    name: str
    command: tuple[str, ...]
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    needs_guard: bool = False
    """Whether a guard ends the process with the stack, because the program cannot watch its parent itself."""
    kill_descendants: bool = False
    """Whether the guard also ends all processes that the program started."""
    outlives_stack: bool = False
    """Whether the guard lets the program continue if the stack is killed."""

    async def start(self) -> Child:
        return await Child.start(
            self.name,
            self.command,
            self.log,
            env=self.env,
            foreign=self.needs_guard,
            kill_descendants=self.kill_descendants,
            outlives_parent=self.outlives_stack,
        )


@dataclass(frozen=True)
class Pool:
    """The agents that run in one process, with one connection and one key. An agent that hangs blocks the others. An
    agent that raises an error does not."""

    key: str
    """The name of the key on the server."""
    agents: tuple[AgentSpec, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.agents)

    @property
    def process_name(self) -> str:
        return f"agent-{self.key}" if self.key in self.names else self.key

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments of the process."""
        options = [part for spec in self.agents for part in option_arguments(spec.name, spec.options)]
        names = [part for name in self.names for part in ("--name", name)]
        return [*(spec.target for spec in self.agents), *names, *options]


def make_pools(specs: Sequence[AgentSpec], size: int | None) -> list[Pool]:
    """Distribute the agents, in the same order, over processes with `size` agents each.

    If `size` is None, installed agents share one process, because a process costs as much as the work of its agents.
    Every other agent has its own process, because its votes may take arbitrarily long. Agents that must be alone always
    have their own process. Raises ConfigError for an agent with the name of a shared process.
    """
    if size == 1:
        return [Pool(spec.name, (spec,)) for spec in specs]
    if size is None:
        installed = tuple(spec for spec in specs if spec.is_installed and not spec.needs_own_process)
        groups = [installed] if len(installed) > 1 else []
    else:
        sharing_specs = [spec for spec in specs if not spec.needs_own_process]
        groups = [tuple(sharing_specs[start : start + size]) for start in range(0, len(sharing_specs), size)]
    shared_pools = [Pool(f"agents-{number}", group) for number, group in enumerate(groups, 1)]
    shared_names = {name for pool in shared_pools for name in pool.names}
    single_pools = [Pool(spec.name, (spec,)) for spec in specs if spec.name not in shared_names]
    keys = {pool.key for pool in shared_pools}
    for spec in specs:
        if spec.name in keys:
            raise ConfigError(f"agent {spec.name!r} has the name of a shared agent process; rename its file")
    return shared_pools + single_pools


@dataclass(frozen=True)
class Plan:
    """Builds the service for each process of one run."""

    folder: RunFolder
    url: str
    otlp: str = ""
    """The address to which the processes send traces, or empty."""
    agents_memory_mb: int | None = None
    kg_folder: str = ""
    """The folder of a large graph that the prior service loads in addition to the built-in one."""

    def mesh(self, number: int = 1) -> Service:
        """Return the process of a mesh replica. The numbers start at 1, and all replicas share one key."""
        name = "mesh" if number == 1 else f"mesh-{number}"
        env = self.environment("mesh") | {"OVEN_HISTORY_CREDS": self._key_path("history"), "OVEN_REPLICA": name}
        return self._stack_process(name, "mesh", (), env)

    def agents(self, pool: Pool) -> Service:
        return self._agent_service(pool.process_name, pool.arguments, pool.key)

    def joining_agent(self, spec: AgentSpec, name: str, *, shadow: bool = False) -> Service:
        """Return the process of an agent that joins the stack's own agents."""
        command = [spec.target, "--name", name, *option_arguments(name, spec.options)]
        command += ["--shadow"] if shadow else []
        return self._agent_service(f"agent-{name}", command, name)

    def _agent_service(self, process: str, arguments: Sequence[str], key: str) -> Service:
        """Return a guarded process, because agents are third-party code that may start other processes."""
        memory_limit = {"OVEN_AGENTS_MEMORY_MB": str(self.agents_memory_mb)} if self.agents_memory_mb else {}
        env = self.environment("agent", key) | memory_limit
        service = self._stack_process(process, "agent", arguments, env)
        return replace(service, needs_guard=True, kill_descendants=True)

    def kg(self) -> Service:
        """Return the process of the prior service, which serves the knowledge graph."""
        arguments = ("--large", self.kg_folder) if self.kg_folder else ()
        return self._stack_process("kg", "kg", arguments, self.environment("kg"))

    def member(self, name: str) -> Service:
        return self._stack_process(f"member-{name}", "member", ("--name", name), self.environment("member", name))

    def notifier(self) -> Service:
        """Return the notifier's process. It has the monitor's key, and reads the recipients from the run's folder."""
        return self._stack_process("notify", "notify", (), self.environment("monitor"))

    def exporter(self, target: str) -> Service:
        """Return the process that exports the run to one target. It has the monitor's key."""
        return self._stack_process(f"export-{target}", "export", (target,), self.environment("monitor"))

    def metrics(self) -> Service:
        """Return the process that computes gauges from the log. It reads the port from the run's settings."""
        return self._stack_process("metrics", "metrics", (), self.environment("monitor"))

    def probes(self) -> Service:
        """Return the process that fetches the frontier calibrator's answers and ends. It does not use the bus."""
        env = {"OVEN_RUN": self.folder.run, "OVEN_RUN_DIR": str(self.folder.path)}
        return self._stack_process("probes", "probes", (), env)

    def learner(self, resume_from: str = "") -> Service:
        """Return the learner's process. `resume_from` is a value of relaunch.RESUME_FROM. If it is empty, the learner
        starts from scratch, or as the recipe's settings specify."""
        defaults = {key: value for key, value in LEARNER_ENVIRONMENT.items() if key not in os.environ}
        env = self.environment("learner") | defaults | _restart_environment(resume_from)
        return self._stack_process("learner", "learner", (), env)

    def script(self, command: Sequence[str], resume_from: str = "", hooks: Sequence[str] = ()) -> Service:
        """Return the process of the user's script, which replaces the learner. `resume_from` works as in `learner`.
        `hooks` are environment variables of oven_learner.integrations.launched. A script that they watch was not
        written for the controller, so it continues if the stack is killed."""
        env = self.environment("learner") | {"PYTHONUNBUFFERED": "1"} | _restart_environment(resume_from)
        env |= dict.fromkeys(hooks, "1") | _python_path()
        log = self.folder.logs / "script.log"
        return Service("script", tuple(command), log, env, needs_guard=True, outlives_stack=bool(hooks))

    def environment(self, role: str, name: str = "") -> dict[str, str]:
        """Return the environment that a process needs to join the run. The user's script has the role `learner`.

        The learner gets all public keys, which it announces. Every process gets the learner's public key, with which
        it verifies the learner's messages.
        """
        environment = {
            "OVEN_URL": self.url,
            "OVEN_RUN": self.folder.run,
            "OVEN_RUN_DIR": str(self.folder.path),
            "OVEN_CREDS": self._key_path(role, name),
        }
        if ca := self.folder.info().tls_ca:
            environment[tls.ENVIRONMENT] = ca
        if learner_key := self.folder.pin():
            environment["OVEN_LEARNER_KEY"] = learner_key
        if role == "learner" and (keys := self.folder.keys_file()):
            environment["OVEN_KEYS"] = str(keys)
        return environment | ({"OVEN_OTLP": self.otlp} if self.otlp else {})

    def attached_learner(self, *, resumed: bool) -> dict[str, str]:
        """Return the environment of a learner that the user starts. A resumed run continues at its last checkpoint."""
        return self.environment("learner") | ({relaunch.RESUME_FROM: relaunch.LATEST} if resumed else {})

    def _key_path(self, role: str, name: str = "") -> str:
        path = self.folder.credentials(role, name)  # type: ignore[arg-type]
        return str(path) if path else ""

    def _stack_process(self, name: str, process: str, args: Sequence[str], env: Mapping[str, str]) -> Service:
        return Service(name, process_command(process, *args), self.folder.logs / f"{name}.log", dict(env))


def _restart_environment(resume_from: str) -> dict[str, str]:
    """Return variables that tell the learner where to resume, and that the stack can restart it for a rollback."""
    return {relaunch.SUPPORT_VARIABLE: "1"} | ({relaunch.RESUME_FROM: resume_from} if resume_from else {})


def _python_path() -> dict[str, str]:
    """Return the PYTHONPATH with which every Python process of the script runs oven_learner's sitecustomize."""
    from oven_learner import startup

    folders = [str(Path(startup.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def process_command(process: str, *args: str) -> tuple[str, ...]:
    """Return the command of one of the stack's own processes. `process` is its name in `process_table`."""
    return (sys.executable, "-P", "-m", "oven_controller.stack.run_process", process, *args)


def run_to_end(process: str, *args: str, timeout_s: float, stdin: str | None = None) -> str:
    """Run one of the stack's own processes to its end and return its output. Raises TimeoutExpired after the timeout.
    If the process fails, raises ConfigError or ProcessError, depending on the exit code, with stderr's last line."""
    command = process_command(process, *args)
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    if result.returncode:
        last_line = next(reversed(result.stderr.splitlines()), f"the {process} process failed without an error message")
        error_type = ConfigError if result.returncode == ConfigError.exit_code else ProcessError
        raise error_type(last_line.removeprefix("error: "))
    return result.stdout


def export_lines(env: Mapping[str, str]) -> list[str]:
    """Return the environment as shell export commands."""
    return [f"export {key}={shlex.quote(value)}" for key, value in env.items()]
