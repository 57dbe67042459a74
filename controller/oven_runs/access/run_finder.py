"""The run that a command means: on this machine by its name, or elsewhere by an address and a key."""

from __future__ import annotations

from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import Home, RunFolder


def find_run(run: str | None, at: Endpoint | None = None, *, running: bool = False) -> RunAccess:
    """The run called `run`; without a name the one that the endpoint names, else the one that runs here, else (unless
    `running`) the newest here. Raises ConfigError, UnknownNameError."""
    endpoint = (at or Endpoint()).completed()
    if endpoint.named:
        return RemoteRun.at(endpoint, run)
    if endpoint.tls_ca is not None and at is not None and at.tls_ca is not None:
        raise ConfigError("--tls-ca says whose certificate to trust, and of which server? add --nats URL, or --creds")
    return LocalRun(Home().find(run, running=running))


def local_folder(access: RunAccess, what: str) -> RunFolder:
    """The folder of a run. Raises ConfigError where it is on another machine; `what` needs it, for the message."""
    if isinstance(access, LocalRun):
        return access.folder
    raise ConfigError(
        f"{what} needs the folder of run {access.run!r}, and {access.place} is another machine: do it there"
    )
