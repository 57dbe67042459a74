"""Create keys for people, and announce changes to the run, even while it is up.

A key is a file that you give to the person. It has two uses: it grants permissions on the server, and it signs an
operator's commands. Readers of the log verify these signatures with the public key in the learner's RunStarted or in a
later OperatorKey.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_controller.stack.agent_keys import name_owner, open_server_folder, reload_users
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError
from oven_core.files import read_file
from oven_core.protocol import names
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.operator_messages import OperatorKey
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.person_file import PersonFile, PersonRole
from oven_core.security.signing import KEYS, OPERATOR, load_keys
from oven_runs.home.run_folder import RunFolder
from oven_runs.server.embedded_server import ServerFolder

SUFFIX: Final = ".oven"
"""Suffix of a person's file. NATS's own `.creds` files have another format."""


@dataclass(frozen=True)
class AdministeredServer:
    """The server of a run, seen by the administrator who manages its keys."""

    server: ServerFolder
    url: str
    """The server's address for people, or an empty string if it is not known on this machine."""
    ca: Path | None = None
    """The certificate authority for TLS."""
    folder: RunFolder | None = None
    """The run's folder if it is on this machine."""

    @classmethod
    def for_run(cls, folder: RunFolder) -> AdministeredServer:
        """Return the server of a run on this machine. Raises ConfigError if it is administered elsewhere."""
        info = folder.info()
        if info.embedded:
            return cls(folder.server, info.url, folder=folder)
        parent = Path(info.creds).parent if info.creds and Path(info.creds).is_dir() else None
        if parent is None or not (parent / "nats.conf").is_file():
            raise ConfigError(
                f"the keys for {tls.redact(info.url)} are on the machine that runs that server; run "
                "`oven-controller creds add NAME --operator --server FOLDER --nats URL` there"
            )
        return cls(open_server_folder(parent), info.url, Path(info.tls_ca) if info.tls_ca else None, folder)

    @classmethod
    def for_folder(cls, path: Path) -> AdministeredServer:
        """Return the server of a folder that `creds server` has written. Raises ConfigError."""
        folder = open_server_folder(path)
        ca = folder.folder / "tls" / "ca.pem"
        return cls(folder, "", ca if ca.is_file() else None)

    @property
    def is_embedded(self) -> bool:
        """Whether this is the stack's own server, which reloads its users on a signal."""
        return self.folder is not None and self.server is self.folder.server


def grant(
    target: AdministeredServer, name: str, role: PersonRole, *, url: str = "", ca: Path | None = None
) -> tuple[PersonFile, str]:
    """Create a person's key. Return its file, and a warning if the run could not be notified.

    `url` and `ca` are the server's address and certificate authority for the person, if different from this machine's.
    The user's own server accepts the key only after it reloads its configuration. Raises ConfigError for a name that is
    in use, and ProcessError if the stack's own server rejects the key.
    """
    names.validate("person", name)
    server, folder = target.server, target.folder
    if owner := name_owner(server, name):
        raise ConfigError(f"{name!r} is the name of {owner}; choose another name for the person")
    path = folder.add_user(role, name) if target.is_embedded and folder else server.add_user(role, name)
    if server.conf.exists():
        server.rewrite_users()
    key = Credentials.load(path)
    if target.is_embedded and folder is not None:
        reload_users(folder, key)
    signing_keys = load_keys(server.creds / KEYS) if (server.creds / KEYS).is_file() else {}
    warning = announce(target, OperatorKey(name=name, key=signing_keys[name]), url) if role == "operator" else ""
    public_keys = {role_name: public for role_name, public in signing_keys.items() if role_name in ("learner", "mesh")}
    file = PersonFile(
        run=server.run,
        name=name,
        role=role,
        url=url or target.url,
        seed=key.seed.decode(),
        keys=public_keys,
        tls_ca=_read_certificates(ca or target.ca),
    )
    return file, warning


def is_operator(server: ServerFolder, name: str) -> bool:
    """Return whether the key belongs to a person who may give commands."""
    return any(user.name == name and user.role == "operator" and name != OPERATOR for user in server.users())


def announce(target: AdministeredServer, change: OperatorKey, url: str = "") -> str:
    """Log the change if the run is up. Otherwise the run reads keys.json when it starts. `url` is the server's address
    if the run has no folder on this machine. Return a warning if logging failed."""
    if target.folder is not None:
        if not target.folder.is_locked():
            return ""
        url = target.folder.info().url
    if not url:
        return ""
    try:
        asyncio.run(_append(target, change, url))
    except BusError as error:
        return (
            f"could not notify the run ({error}); if it is up, repeat this command or restart the learner to apply the "
            f"change to the key of {change.name!r}"
        )
    return ""


async def _append(target: AdministeredServer, change: OperatorKey, url: str) -> None:
    """Append the change to the log of a run that has started. Raises BusError."""
    run = target.server.run
    trust = tls.trust_file(target.ca) if target.ca is not None else None

    def load_key(name: str) -> Credentials:
        return Credentials.load(target.server.creds / f"{name}.nk")

    subjects = names.Subjects(run)
    async with Bus.connect(url, load_key("admin"), name="admin", trust=trust) as admin:
        try:
            head = await admin.head(run)
        except BusError:
            return  # the run has no log yet
        has_started = False
        async for event in admin.read(run, until=head, subjects=[subjects.run]):
            has_started = has_started or isinstance(event.body, RunStarted)
    if has_started:
        async with Bus.connect(url, load_key(OPERATOR), name=OPERATOR, trust=trust) as bus:
            await bus.append(subjects.operator(OPERATOR), change.wire(), message_id=uuid.uuid4().hex)


def _read_certificates(ca: Path | None) -> str:
    """Return only the certificates in a file, e.g. without a private key. Raises ConfigError if there are none."""
    if ca is None:
        return ""
    text = read_file(ca, "the certificate authority").decode(errors="replace")
    certificates = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, re.DOTALL)
    if not certificates:
        raise ConfigError(f"{ca} contains no certificate (PEM); `creds server --tls` creates one for the authority")
    return "\n".join(certificates) + "\n"
