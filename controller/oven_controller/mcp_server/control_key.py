"""The key by which the server acts: its own, so that the log says who."""

from __future__ import annotations

from typing import Final

from oven_controller.stack import person_keys
from oven_core.errors import BusError
from oven_core.security import tls
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.access.run_access import RunAccess

NAME: Final = "mcp"
"""As the log has it."""


class ControlKey:
    """The keys of the runs that the server has acted on."""

    def __init__(self) -> None:
        self._runs: dict[str, RunAccess] = {}

    def commanding(self, access: RunAccess) -> RunAccess:
        """The run as an operator called NAME reaches it. Where its folder is here, the key is made at the first
        command, and the run's log says so; elsewhere it is the person's who is served. Raises ConfigError where the
        run's keys are made elsewhere, ProcessError and BusError where the run does not take the key."""
        if not isinstance(access, LocalRun):
            return access
        folder = access.folder
        place = f"{folder.path} at {folder.info().url}"
        if place not in self._runs:
            held, untold = person_keys.grant(person_keys.Place.of_run(folder), NAME, "operator")
            if untold:
                raise BusError(untold)
            trust = tls.trusting_text(held.tls_ca, place) if held.tls_ca else None
            self._runs[place] = RemoteRun(
                held.run, folder.info().url, held.credentials, role="operator", keys=held.keys, trust=trust
            )
        return self._runs[place]
