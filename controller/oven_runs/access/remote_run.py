"""Access to a run on another machine through its address and a key, without the run's folder."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oven_core.errors import BusError, ConfigError, RefusedError
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.security import person_file, tls
from oven_core.security.credentials import Credentials
from oven_core.security.person_file import PersonFile
from oven_core.security.signing import LEARNER, Keyring
from oven_core.terminal_text import warn
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_info import RunInfo

if TYPE_CHECKING:  # imported in the methods that need it: see run_access
    from oven_core.bus.connection import Bus
    from oven_core.protocol.permissions import Role

READER_ROLES: Final[tuple[Role, ...]] = ("monitor", "operator")
"""Roles whose keys may read a run."""


class RemoteRun(RunAccess):
    """A run that is accessed through its address. Its log comes from `history`, because users cannot read the store."""

    def __init__(
        self,
        run: str,
        url: str,
        credentials: Credentials | None = None,
        *,
        role: Role | None = None,
        keys: Mapping[str, str] | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """`role` is the role of the key, or None if only the server knows it. `keys` has the known public keys by
        signer. It is {} for an unsigned run, and None to trust the keys in the log's first RunStarted."""
        self.run = names.validate("run", run)
        self.user = credentials.name if credentials else "operator"
        self._url, self._credentials, self._role = url, credentials, role
        self._keys, self._trust = keys, trust

    @classmethod
    def from_endpoint(cls, endpoint: Endpoint, run: str | None = None) -> RemoteRun:
        """Combine the options with the credential file. Raises ConfigError if something is missing."""
        if endpoint.url:
            tls.checked_addresses(endpoint.url)
        credentials = person_file.load(endpoint.creds) if endpoint.creds is not None else None
        if not isinstance(credentials, PersonFile):
            name = run or endpoint.run
            if not name:
                raise ConfigError(
                    f"the run at {tls.redact(endpoint.url)} has to be named: set --run NAME or OVEN_RUN, or use a "
                    "credential file from `creds add NAME --operator`, which contains the name"
                )
            return cls(
                name,
                _checked_address(endpoint.url, endpoint),
                credentials,
                keys={LEARNER: endpoint.pin} if endpoint.pin else None,
                trust=tls.trust_file(endpoint.tls_ca) if endpoint.tls_ca is not None else None,
            )
        person = credentials
        if run is not None and run != person.run:
            source = endpoint.source if endpoint.source.startswith("OVEN") else "--creds"
            raise ConfigError(
                f"{endpoint.creds} (from {source}) is the key of {person.name!r} for run {person.run!r}, not for "
                f"{run!r}: use that run's file, or omit the run's name"
            )
        trust = tls.trust_text(person.tls_ca, str(endpoint.creds)) if person.tls_ca else None
        if endpoint.tls_ca is not None:
            trust = tls.trust_file(endpoint.tls_ca)
        url = _checked_address(endpoint.url or person.url, endpoint)
        return cls(person.run, url, person.credentials, role=person.role, keys=person.keys, trust=trust)

    @property
    def location(self) -> str:
        return tls.redact(self._url)

    @property
    def export_folder(self) -> Path:
        return Path.cwd()

    def info(self) -> RunInfo:
        return RunInfo(run=self.run, created="", recipe="", url=self.location, embedded=False)

    def is_up(self) -> bool:
        return True

    def is_over(self, has_ended: bool) -> bool:
        return has_ended

    @contextlib.asynccontextmanager
    async def connect(self, role: Role) -> AsyncIterator[Bus]:
        from oven_core.bus.connection import Bus

        if role not in READER_ROLES:
            raise ConfigError(f"only a process on the machine of run {self.run!r} can connect as {role}")
        if role == "operator" and self._role == "monitor":
            raise RefusedError(
                f"the key of {self.user!r} is read-only: it can watch run {self.run!r} but not control it; ask for an "
                f"operator's key, which `oven-controller creds add NAME --operator --run {self.run}` creates"
            )
        async with Bus.connect(self._url, self._credentials, name=self.user, trust=self._trust) as bus:
            yield bus

    def keyring(self, *, check: bool = True) -> Keyring:
        return Keyring((self._keys or {}).get(LEARNER), check=check)

    async def live_keyring(self, bus: Bus) -> Keyring:
        if self._keys is not None and len(self._keys) != 1:  # the run is unsigned, or all keys are known
            return Keyring.with_keys(self._keys)
        keyring = self.keyring()
        async for events in self._read_batches(bus):
            for event in events:
                keyring.verify(event)
            if keyring.keys is not None:
                break
        return Keyring.with_keys(keyring.keys or {})

    async def raw_events(
        self, *, exact: bool = False, brief: bool = False, report: Callable[[str], object] = warn
    ) -> AsyncGenerator[Event]:
        async with self.connect("monitor") as bus, contextlib.aclosing(self._read_batches(bus)) as batches:
            async for events in batches:
                for event in events:
                    yield event

    def stored(self, after: int = 0) -> AsyncGenerator[Event]:
        raise BusError(self._mesh_error())

    async def _read_batches(self, bus: Bus) -> AsyncGenerator[list[Event]]:
        from oven_runs.access.log_sources import read_batches

        try:
            async for events in read_batches(bus, self.run):
                yield events
        except BusError as error:
            if not bus.is_connected:
                raise
            raise BusError(f"{self._mesh_error()} ({error})") from error

    def _mesh_error(self) -> str:
        return (
            f"no mesh of run {self.run!r} answers at {self.location}, and without one the log cannot be read from "
            "another machine: check the run's name, try again later, or read the log on the run's machine"
        )


def _checked_address(url: str, endpoint: Endpoint) -> str:
    """Return the address, and warn if the connection is not encrypted. Raises ConfigError."""
    if not url:
        raise ConfigError(f"{endpoint.creds} has no address: pass it with --nats URL, or set OVEN_URL")
    for server in tls.checked_addresses(url):
        if warning := tls.plaintext_warning(server):
            warn(warning)
    return url
