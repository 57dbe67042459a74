"""Checks a request to `up` before anything is started or created. A dry run makes the same checks."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_controller.exporting.target import check_target
from oven_controller.notify.recipients import resolve_recipients
from oven_controller.stack.process_plan import Pool, make_pools, run_to_end
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, NameInUseError
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_runs.home import probe_set
from oven_runs.home.run_folder import IMPORTED, Home, RunFolder
from oven_runs.server import embedded_server
from oven_runs.settings.agents import AgentSpec, agent_specs, agents_per_process
from oven_runs.settings.committee_members import check_keys
from oven_runs.settings.completions import ATTACHED
from oven_runs.settings.resolution import ResolvedSettings
from oven_runs.settings.run_settings import Settings

GRAPH_FILE = "graph.json"
"""A file in the folder of every large graph. The prior service checks the folder's other files."""
LOADING_TIMEOUT_S = 60.0
"""Seconds that loading the agents' files may take. Later, the stack waits equally long for the agents' processes."""


@dataclass(frozen=True)
class Request:
    """A request to `up` from the command line."""

    resolved: ResolvedSettings
    run: str | None = None
    resume: bool = False
    starts_learner: bool = True
    """Whether the stack starts a learner. If not, it waits for one to connect."""
    command: tuple[str, ...] = ()
    """The user's script, which replaces the learner."""
    hooks: tuple[str, ...] = ()
    """How the script is watched without edits: environment variables of oven_learner.integrations.launched."""
    quiet: bool = False
    """Whether the script's output goes only to its log."""
    on_ready: Callable[[Mapping[str, Any]], None] | None = None
    """Called with what the user's own learner needs to connect, and later with the summary. By default, both are
    printed as lines."""

    @property
    def opens_monitor(self) -> bool:
        """Whether the monitor opens in the terminal. It stays closed for a script, which uses the terminal itself, and
        without a learner, because the user must see how to start one."""
        return self.starts_learner and not self.command and not self.resolved.settings.headless


def check_request(request: Request, home: Home) -> None:
    """Check the settings and names of a request. Raises OvenError if the run could not start or resume with them."""
    settings = request.resolved.settings
    if request.command and shutil.which(request.command[0]) is None:
        raise ConfigError(
            f"{request.command[0]!r} is not a program: it is not on PATH and not an executable file; check its name, "
            "or write e.g. `oven-controller run -- python train.py`"
        )
    if settings.port is not None and not settings.nats and not embedded_server.is_free(settings.port):
        raise ConfigError(
            f"port {settings.port} on 127.0.0.1 is in use; choose another with --port, or omit it to use a free one"
        )
    for target in settings.export:
        check_target(target)
    if settings.metrics_port and not embedded_server.is_free(settings.metrics_port):
        raise ConfigError(
            f"the metrics port {settings.metrics_port} on 127.0.0.1 is in use; choose another with --metrics-port"
        )
    if settings.nats:
        for name in _key_names(request):
            _load_credentials(settings, name)
        if settings.tls_ca:
            tls.trust_file(settings.tls_ca)
    make_pools(agent_specs(settings), agents_per_process(settings))  # raises an error for a reserved name
    check_keys(settings.committee)
    resolve_recipients(settings.notify, os.environ, home.find(request.run).path if request.resume else None)
    if settings.committee.frontier.model:
        probe_set.read_prompts(Path(settings.committee.frontier.prompts))
    if isinstance(settings.kg, str) and not (Path(settings.kg) / GRAPH_FILE).is_file():
        raise ConfigError(
            f"kg is {settings.kg}, which is not a graph folder with a {GRAPH_FILE}; create one with "
            "`oven-controller kg import FILE --to FOLDER`"
        )
    if settings.agent_options:
        check_agents(settings)  # only a loaded agent can check its options
    if request.resume:
        check_resumable(home.find(request.run), request.starts_learner)
    else:
        home.check_free(request.run)


def check_resumable(folder: RunFolder, starts_learner: bool = True) -> None:
    """Raise ConfigError for a run that cannot be resumed, because it was imported or is completed. If the stack starts
    no learner, a completed run is accepted, because the user's own learner decides what to do."""
    recipe = folder.info().recipe
    if recipe == IMPORTED:
        raise ConfigError(
            f"run {folder.run!r} was imported and cannot be resumed; start one with `oven-controller run`"
        )
    if starts_learner and folder.status() == "completed":
        remedy = f"start another with `oven-controller up --recipe {recipe}`"
        if recipe == ATTACHED:
            remedy = (
                "start another with `oven-controller run -- COMMAND`; to continue from these weights, remove "
                "oven.json from the checkpoint to start from"
            )
        raise ConfigError(
            f"run {folder.run!r} is completed; only stopped, interrupted or failed runs can be resumed; {remedy}"
        )


def check_agents(settings: Settings) -> None:
    """Load the agents once in a separate process. Raises ConfigError for an agent that cannot be loaded."""
    if specs := agent_specs(settings):
        load_agents(specs, "--check")


def load_agents(specs: Sequence[AgentSpec], mode: str) -> str:
    """Load the agents in a separate process and return its output. `mode` is `--check`, or `--options` to print their
    options as JSON. Raises ConfigError for an agent that cannot be loaded."""
    arguments = Pool("", tuple(specs)).arguments
    try:
        return run_to_end("agent", *arguments, mode, timeout_s=LOADING_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        files = ", ".join(spec.target for spec in specs if not spec.is_installed) or "the agents"
        raise ConfigError(
            f"importing {files} took longer than {LOADING_TIMEOUT_S:g} s; importing a file must not block"
        ) from error


async def check_server(request: Request) -> None:
    """Connect to the server of --nats as `up` does. Raises BusError, or another error that would prevent the run."""
    settings = request.resolved.settings
    trust = tls.trust_file(settings.tls_ca) if settings.tls_ca else None
    await exposure_warning(settings.nats, settings.tls_ca, trust)  # raises an error if the server accepts anyone
    async with Bus.connect(settings.nats, _load_credentials(settings, "admin"), name="admin", trust=trust) as bus:
        if request.run and not request.resume and await streams.exists(bus.jetstream, request.run):
            raise NameInUseError(
                f"run {request.run!r} already exists on this server; choose another name, or continue it with --resume"
            )


def _key_names(request: Request) -> list[str]:
    """Return the names of the keys that the stack's processes need."""
    settings = request.resolved.settings
    learner = ["learner"] if request.starts_learner or request.command else []
    agents = [pool.key for pool in make_pools(agent_specs(settings), agents_per_process(settings))]
    return ["admin", "mesh", "history", *learner, *agents, *settings.committee.judges]


def _load_credentials(settings: Settings, name: str) -> Credentials | None:
    if not settings.creds:
        return None
    path = Path(settings.creds).absolute()
    return Credentials.load(path / f"{name}.nk" if path.is_dir() else path)


async def exposure_warning(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    """Return a warning about an exposed server, or an empty string. `url` is one address, or several with commas.

    Raises ConfigError for a server that accepts anyone, unless only this machine can reach it. A server that does not
    answer is not reported here, because `up` reports it when it connects.
    """
    warnings = [await _address_warning(address, ca, trust) for address in url.split(",")]
    return next((warning for warning in warnings if warning), "")


async def _address_warning(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    if ca and not url.startswith("tls://"):
        raise ConfigError(f"--tls-ca {ca} has no effect with {url}; use a tls:// address")
    if tls.is_loopback(tls.host_of(url)):
        return ""
    try:
        async with Bus.connect(url, name="anonymous", trust=trust):
            pass
    except BusError:
        return tls.plaintext_warning(url)
    raise ConfigError(
        f"{url} accepts anyone, so anyone could vote, decide and delete; configure users (`oven-controller creds "
        "server` makes a configuration), or use a server on 127.0.0.1"
    )
