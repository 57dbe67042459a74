"""Check a request to `up` before anything is started or created. A dry run does the same checks."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_controller.notify.recipients import resolve
from oven_controller.stack.plan import Pool, own_command, pools
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, NameInUseError, ProcessError
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_runs.home import probe_set
from oven_runs.home.run_folder import IMPORTED, Home, RunFolder
from oven_runs.server import embedded as servers
from oven_runs.settings.agents import AgentSpec, agent_specs, per_process
from oven_runs.settings.committee_members import check_keys
from oven_runs.settings.model import ATTACHED, Settings
from oven_runs.settings.resolution import Resolved

GRAPH = "graph.json"
"""A file in the folder of every large graph. The prior service checks the other files."""
LOAD_S = 60.0
"""Timeout for loading the agents' files, the same as for their process to become ready."""


@dataclass(frozen=True)
class Request:
    """A request to `up` from the command line."""

    resolved: Resolved
    run: str | None = None
    resume: bool = False
    learner: bool = True
    """Whether the stack starts a learner. If not, it waits for one to connect."""
    command: tuple[str, ...] = ()
    """The user's script, which replaces the learner."""
    quiet: bool = False
    announced: Callable[[Mapping[str, Any]], None] | None = None
    """Called, if no learner is started, with the run and the environment that a learner needs, instead of printing
    them."""

    @property
    def monitored(self) -> bool:
        """Whether the monitor opens in the terminal. It does not around a script, which uses the terminal itself, nor
        without a learner, because the user has to see how to start one."""
        return self.learner and not self.command and not self.resolved.settings.headless


def check(request: Request, home: Home) -> None:
    """Check names, keys, ports and the run. Raises OvenError for those that cannot be used, or a run that cannot
    continue."""
    settings = request.resolved.settings
    if request.command and shutil.which(request.command[0]) is None:
        raise ConfigError(
            f"{request.command[0]!r} is not a program: it is neither on PATH nor an executable file; check its name, "
            "or write e.g. `oven-controller run -- python train.py`"
        )
    if settings.port is not None and not settings.nats and not servers.is_free(settings.port):
        raise ConfigError(
            f"port {settings.port} on 127.0.0.1 is in use; choose another with --port, or omit it to use a free one"
        )
    if settings.nats:
        for name in _keys(request):
            _credentials(settings, name)
        if settings.tls_ca:
            tls.trust_file(settings.tls_ca)
    pools(agent_specs(settings), per_process(settings))
    check_keys(settings.committee)
    resolve(settings.notify, os.environ, home.find(request.run).path if request.resume else None)
    if settings.committee.frontier.model:
        probe_set.read_prompts(Path(settings.committee.frontier.prompts))
    if isinstance(settings.kg, str) and not (Path(settings.kg) / GRAPH).is_file():
        raise ConfigError(
            f"kg is {settings.kg}, which is not a graph's folder (with a {GRAPH}); make one with "
            "`oven-controller kg import FILE --to FOLDER`"
        )
    if settings.agent_options:
        check_agents(settings)  # a wrong option is found only by loading the agent
    if request.resume:
        check_resumable(home.find(request.run), request.learner)
    else:
        home.check_free(request.run)


def check_resumable(folder: RunFolder, learner: bool = True) -> None:
    """Raises ConfigError for a run that has nothing left to train.

    Without a `learner` here, the stack may be up again in any case: the learner elsewhere decides whether it continues.
    """
    recipe = folder.info().recipe
    if recipe == IMPORTED:
        raise ConfigError(f"run {folder.run!r} was imported and cannot continue; start one by `oven-controller run`")
    if learner and folder.status() == "completed":
        remedy = f"start another with `oven-controller up --recipe {recipe}`"
        if recipe == ATTACHED:
            remedy = (
                "start another with `oven-controller run -- COMMAND`; to continue with these weights, remove "
                "oven.json from the checkpoint to start from"
            )
        raise ConfigError(
            f"run {folder.run!r} is completed, and only runs that were stopped, interrupted or failed resume; {remedy}"
        )


def check_agents(settings: Settings) -> None:
    """Load the agents once in their own process. Raises ConfigError for an agent that cannot be loaded."""
    if specs := agent_specs(settings):
        load_agents(specs, "--check")


def load_agents(specs: Sequence[AgentSpec], then: str) -> str:
    """Load the agents in a process and return its output. `then`: `--check`, or `--options` to print their options as
    JSON. Raises ConfigError for an agent that cannot be loaded."""
    command = own_command("agent", *Pool("", tuple(specs)).arguments, then)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LOAD_S)
    except subprocess.TimeoutExpired as error:
        files = ", ".join(spec.target for spec in specs if not spec.installed) or "the agents"
        raise ConfigError(f"{files}: not imported within {LOAD_S:g} s; the import of a file must not wait") from error
    if done.returncode:
        last = next(reversed(done.stderr.splitlines()), "it printed nothing")
        raise (ConfigError if done.returncode == ConfigError.exit_code else ProcessError)(last.removeprefix("error: "))
    return done.stdout


async def check_server(request: Request) -> None:
    """Connect to the server of --nats as `up` does. Raises BusError, and other errors that prevent the run."""
    settings = request.resolved.settings
    trust = tls.trust_file(settings.tls_ca) if settings.tls_ca else None
    await exposure_warning(settings.nats, settings.tls_ca, trust)
    async with Bus.connect(settings.nats, _credentials(settings, "admin"), name="admin", trust=trust) as bus:
        if request.run and not request.resume and await streams.exists(bus.jetstream, request.run):
            raise NameInUseError(
                f"run {request.run!r} exists on this server; choose another name, or continue it with --resume"
            )


def _keys(request: Request) -> list[str]:
    """Return the names of the keys that the stack's processes need."""
    settings = request.resolved.settings
    learner = ["learner"] if request.learner or request.command else []
    agents = [pool.key for pool in pools(agent_specs(settings), per_process(settings))]
    return ["admin", "mesh", "history", *learner, *agents, *settings.committee.judges]


def _credentials(settings: Settings, name: str) -> Credentials | None:
    if not settings.creds:
        return None
    path = Path(settings.creds).absolute()
    return Credentials.load(path / f"{name}.nk" if path.is_dir() else path)


async def exposure_warning(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    """Return a warning about an exposed server, or an empty text. `url`: one address, or several with commas.

    Raises ConfigError for a server that admits anyone, unless only this machine can reach it. A server that does not
    answer is reported later, by the real connection.
    """
    warnings = [await _exposed(address, ca, trust) for address in url.split(",")]
    return next((warning for warning in warnings if warning), "")


async def _exposed(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    if ca and not url.startswith("tls://"):
        raise ConfigError(f"--tls-ca {ca} has no effect with {url}: use tls:// for a connection by TLS")
    if tls.is_loopback(tls.host_of(url)):
        return ""
    try:
        async with Bus.connect(url, name="anonymous", trust=trust):
            pass
    except BusError:
        return tls.plaintext_warning(url)
    raise ConfigError(
        f"{url} admits anyone, who could then vote, decide and delete; give it users "
        "(`oven-controller creds server` makes them), or use a server on 127.0.0.1"
    )
