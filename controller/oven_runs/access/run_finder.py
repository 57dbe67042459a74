"""Find the run that a command refers to: by its name on this machine, or by an address and a key."""

from __future__ import annotations

from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import Home, RunFolder


def find_run(run: str | None, options: Endpoint | None = None, *, running: bool = False) -> RunAccess:
    """Return access to the run with this name. Without a name, choose the run at the endpoint or the only one that is
    running on this machine. If there is neither and `running` is false, choose the newest run here. Raises ConfigError
    and UnknownNameError."""
    options = options or Endpoint()
    endpoint = options.with_environment()
    if endpoint.is_remote:
        from oven_runs.access.remote_run import RemoteRun

        return RemoteRun.from_endpoint(endpoint, run)
    if options.tls_ca is not None:
        raise ConfigError("--tls-ca is used without a server address: add --nats URL or --creds FILE")
    return LocalRun(Home().find(run, running=running))


def local_folder(access: RunAccess, task: str) -> RunFolder:
    """Return the run's folder, which `task` needs. Raises ConfigError if the run is on another machine."""
    if isinstance(access, LocalRun):
        return access.folder
    raise ConfigError(
        f"{task} needs the folder of run {access.run!r}, which is on another machine ({access.location}); run the "
        "command on that machine"
    )
