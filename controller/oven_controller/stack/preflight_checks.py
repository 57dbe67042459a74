"""Checks of `up`'s request before anything is started or made; a dry run makes them, too."""

from __future__ import annotations

import os
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
"""In the folder of every large graph; the prior service checks the rest of it."""
LOAD_S = 60.0
"""For the agents' files: as long as a process of theirs has to be ready."""


@dataclass(frozen=True)
class Request:
    """What the command line asked for. `command`: a script in the learner's place; `learner` False: no one yet;
    `announced` is then told the run and the environment that a learner needs, instead of a person."""

    resolved: Resolved
    run: str | None = None
    resume: bool = False
    learner: bool = True
    command: tuple[str, ...] = ()
    quiet: bool = False
    announced: Callable[[Mapping[str, Any]], None] | None = None

    @property
    def monitored(self) -> bool:
        """Whether the monitor opens in the terminal. Around a script the terminal is the script's, and who is asked to
        start their own learner has to see with what."""
        return self.learner and not self.command and not self.resolved.settings.headless


def check(request: Request, home: Home) -> None:
    """Raises OvenError for names, keys and ports that cannot be used, and for a run that cannot continue."""
    settings = request.resolved.settings
    if settings.port is not None and not settings.nats and not servers.is_free(settings.port):
        raise ConfigError(
            f"port {settings.port} on 127.0.0.1 is in use; choose another with --port, or omit it to use a free one"
        )
    if settings.nats:
        for name in _keys(request):
            _credentials(settings, name)
        if settings.tls_ca:
            tls.trusting(settings.tls_ca)
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
        check_agents(settings)  # an option that is wrong shows only where the agent is loaded
    if request.resume:
        check_resumable(home.find(request.run), request.learner)
    else:
        home.check_free(request.run)


def check_resumable(folder: RunFolder, learner: bool = True) -> None:
    """Raises ConfigError for a run that has nothing left to train. Where another machine's learner trains, what is
    around it may be up again all the same: the learner says for itself whether it continues."""
    recipe = folder.info().recipe
    if recipe == IMPORTED:
        raise ConfigError(f"run {folder.run!r} was imported and cannot continue; start one by `oven-controller run`")
    if learner and folder.status() == "completed":
        remedy = f"start another with `oven-controller up --recipe {recipe}`"
        if recipe == ATTACHED:
            remedy = (
                "start another with `oven-controller run -- COMMAND`; to train on with this one's weights, remove "
                "oven.json from the checkpoint that it shall begin with"
            )
        raise ConfigError(
            f"run {folder.run!r} is completed, and only runs that were stopped, interrupted or failed resume; {remedy}"
        )


def check_agents(settings: Settings) -> None:
    """Loads the agents as their process does, in one that ends then. Raises ConfigError for one that cannot be."""
    if specs := agent_specs(settings):
        load_agents(specs, "--check")


def load_agents(specs: Sequence[AgentSpec], then: str) -> str:
    """What a process of these agents prints that loads them, does what `then` says, and ends: `--check`, or `--options`
    for their options as JSON. Raises ConfigError for one that cannot be loaded."""
    command = own_command("agent", *Pool("", tuple(specs)).arguments, then)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LOAD_S)
    except subprocess.TimeoutExpired as error:
        files = ", ".join(spec.target for spec in specs if not spec.installed) or "the agents"
        raise ConfigError(f"{files}: not imported within {LOAD_S:g} s; a file must not wait while it is") from error
    if done.returncode:
        last = next(reversed(done.stderr.splitlines()), "it says nothing")
        raise (ConfigError if done.returncode == ConfigError.exit_code else ProcessError)(last.removeprefix("error: "))
    return done.stdout


async def check_server(request: Request) -> None:
    """Connects to the server of --nats as `up` does. Raises BusError and what else keeps a run from it."""
    settings = request.resolved.settings
    trust = tls.trusting(settings.tls_ca) if settings.tls_ca else None
    await exposure_warning(settings.nats, settings.tls_ca, trust)
    async with Bus.connect(settings.nats, _credentials(settings, "admin"), name="admin", trust=trust) as bus:
        if request.run and not request.resume and await streams.exists(bus.jetstream, request.run):
            raise NameInUseError(
                f"run {request.run!r} exists on this server; choose another name, or continue it with --resume"
            )


def _keys(request: Request) -> list[str]:
    """The names of the keys without which a process does not start."""
    settings = request.resolved.settings
    learner = ["learner"] if request.learner or request.command else []
    agents = [pool.key for pool in pools(agent_specs(settings), per_process(settings))]
    return ["admin", "mesh", "history", *learner, *agents, *settings.committee.judges]


def _credentials(settings: Settings, name: str) -> Credentials | None:
    if not settings.creds:
        return None
    given = Path(settings.creds).absolute()
    return Credentials.load(given / f"{name}.nk" if given.is_dir() else given)


async def exposure_warning(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    """What to warn of; empty if nothing. `url`: one server, or several with commas. Raises ConfigError for a
    server that lets anybody in, unless none but this machine can reach it. A server that does not answer is for anyone
    who connects in earnest to tell of."""
    found = [await _exposed(one, ca, trust) for one in url.split(",")]
    return next((warning for warning in found if warning), "")


async def _exposed(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    if ca and not url.startswith("tls://"):
        raise ConfigError(f"--tls-ca {ca} has no meaning with {url}: write tls:// where TLS is meant")
    if tls.is_loopback(tls.host_of(url)):
        return ""
    try:
        async with Bus.connect(url, name="anonymous", trust=trust):
            pass
    except BusError:
        return tls.open_to_readers(url)
    raise ConfigError(
        f"{url} accepts anybody: who reaches it could vote, decide and delete; give it users "
        "(`oven-controller creds server` makes them), or use a server on 127.0.0.1"
    )
