"""Persons' keys: made, handed out as one file, counted by the log from then on, and taken back, all while a run is up.

A key opens two things. The server lets its holder in, and to what; and an operator's commands are believed by their
signature, which the log's readers know of by the learner's RunStarted or, meanwhile, by an OperatorKey.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_controller.stack.agent_keys import reserved, server_folder, told
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError
from oven_core.files import read_file
from oven_core.protocol import names
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.operator_messages import OperatorKey
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.person_file import PersonFile, Power
from oven_core.security.signing import OPERATOR, load_keys
from oven_runs.home.run_folder import RunFolder
from oven_runs.server.embedded import KEYS, ServerFolder

SUFFIX: Final = ".oven"
"""Of a person's file. NATS's own `.creds` are another format."""


@dataclass(frozen=True)
class Place:
    """The server of one run, as who administers it has it: its folder, and how it is reached."""

    server: ServerFolder
    url: str
    """For a person; empty: not known here."""
    ca: Path | None = None
    folder: RunFolder | None = None
    """The run's, where it is on this machine."""

    @classmethod
    def of_run(cls, folder: RunFolder) -> Place:
        """Of a run on this machine. Raises ConfigError where its server is administered elsewhere."""
        info = folder.info()
        if info.embedded:
            return cls(folder.server, info.url, folder=folder)
        beside = Path(info.creds).parent if info.creds and Path(info.creds).is_dir() else None
        if beside is None or not (beside / "nats.conf").is_file():
            raise ConfigError(
                f"the keys for {tls.shown(info.url)} are its administrator's: there, `oven-controller creds add NAME "
                "--operator --server FOLDER --nats URL`"
            )
        return cls(server_folder(beside), info.url, Path(info.tls_ca) if info.tls_ca else None, folder)

    @classmethod
    def of_server(cls, path: Path) -> Place:
        """Of a folder that `creds server` made. Raises ConfigError."""
        made = server_folder(path)
        ca = made.folder / "tls" / "ca.pem"
        return cls(made, "", ca if ca.is_file() else None)

    @property
    def embedded(self) -> bool:
        """Whether the server is the stack's own, which reads its users again when it is told to."""
        return self.folder is not None and self.server is self.folder.server


def grant(place: Place, name: str, power: Power, *, url: str = "", ca: Path | None = None) -> tuple[PersonFile, str]:
    """A person's key in its file, and what to say where the run could not be told of it; it believes it from now on.

    `url` and `ca`: as the person reaches the server, where that is another way than from here. A server that is not the
    stack's own still has to read its users. Raises ConfigError for a name that is taken, ProcessError when the stack's
    own server does not take the key.
    """
    names.checked("person", name)
    server, folder = place.server, place.folder
    if taken := reserved(server, name):
        raise ConfigError(f"{name!r} is the name of {taken}; choose another for a person")
    path = folder.add_user(power, name) if place.embedded and folder else server.add_user(power, name)
    if server.conf.exists():
        server.rewrite_users()
    key = Credentials.load(path)
    if place.embedded and folder is not None and folder.locked() and folder.info().port is not None:
        asyncio.run(told(folder, key, welcome=True))
    untold = ""
    signing = load_keys(server.creds / KEYS) if (server.creds / KEYS).is_file() else {}
    if power == "operator":
        untold = asyncio.run(_say(place, OperatorKey(name=name, key=signing[name]), url))
    known = {who: public for who, public in signing.items() if who in ("learner", "mesh")}
    file = PersonFile(
        run=server.run,
        name=name,
        role=power,
        url=url or place.url,
        seed=key.seed.decode(),
        keys=known,
        tls_ca=_authority(ca or place.ca),
    )
    return file, untold


def take_back(place: Place, name: str) -> str:
    """A person's signature counts no longer; that the server no longer lets them in is `agent_keys.revoke`'s. What to
    say where the run could not be told."""
    return asyncio.run(_say(place, OperatorKey(name=name)))


def is_person(server: ServerFolder, name: str) -> bool:
    """Whether a key is a person's, who may command."""
    return any(user.name == name and user.role == "operator" and name != OPERATOR for user in server.users())


async def _say(place: Place, change: OperatorKey, url: str = "") -> str:
    """Tell a run that is up; one that is down hears of it by its keys.json. Empty, or why it was not told."""
    folder = place.folder
    url = folder.info().url if folder is not None else url
    if not url or (folder is not None and not folder.locked()):
        return ""
    try:
        await _append(place, change, url)
    except BusError as error:
        return (
            f"the run was not told ({error}): if it is up, it hears of the key of {change.name!r} when this command is "
            "repeated, or when its learner starts again"
        )
    return ""


async def _append(place: Place, change: OperatorKey, url: str) -> None:
    """Into the log of a run that has begun. Raises BusError."""
    run = place.server.run
    trust = tls.trusting(place.ca) if place.ca is not None else None

    def key(name: str) -> Credentials:
        return Credentials.load(place.server.creds / f"{name}.nk")

    on = names.Subjects(run)
    async with Bus.connect(url, key("admin"), name="admin", trust=trust) as admin:
        try:
            head = await admin.head(run)
        except BusError:
            return  # there is no log yet
        begun = False
        async for event in admin.read(run, until=head, subjects=[on.run]):
            begun = begun or isinstance(event.body, RunStarted)
    if begun:
        async with Bus.connect(url, key(OPERATOR), name=OPERATOR, trust=trust) as bus:
            await bus.append(on.operator(OPERATOR), change.wire(), message_id=uuid.uuid4().hex)


def _authority(ca: Path | None) -> str:
    """Its certificates alone: what else is in the file stays here."""
    if ca is None:
        return ""
    text = read_file(ca, "the certificate authority").decode(errors="replace")
    found = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, re.DOTALL)
    if not found:
        raise ConfigError(f"{ca} holds no certificate (PEM); give the authority's, which `creds server --tls` made")
    return "\n".join(found) + "\n"
