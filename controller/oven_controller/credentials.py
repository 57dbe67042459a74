"""Who may do what on the bus: an nkey (ed25519) per role, and the permissions that the server holds it to.

The agent's name is in its subjects, so the server itself stops it from voting under another name. Agents, monitors and
operators have no JetStream API at all: subject permissions alone leave ways around through it (a reply subject, a
consumer's deliver subject). They catch up by asking `history`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nkeys

from oven_controller import names
from oven_controller.errors import ConfigError
from oven_controller.names import Subjects, log_stream

Role = Literal["admin", "learner", "mesh", "history", "kg", "member", "agent", "operator", "monitor"]


@dataclass(frozen=True)
class Credentials:
    """A role's private key. `seed` is never logged: repr hides it."""

    name: str
    seed: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.name!r})"

    @property
    def public(self) -> str:
        return str(nkeys.from_seed(bytearray(self.seed)).public_key.decode())

    @classmethod
    def new(cls, name: str) -> Credentials:
        return cls(name, bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)))

    @classmethod
    def load(cls, path: Path) -> Credentials:
        """Read a `.nk` file; the file's stem is the role's name."""
        try:
            seed = path.read_bytes().strip()
            nkeys.from_seed(bytearray(seed))
        except OSError as error:
            raise ConfigError(f"cannot read the credentials {path}: {error.strerror}") from error
        except Exception as error:
            raise ConfigError(
                f"{path} holds no nkey seed (one line that starts with SU); make one with "
                "`oven-controller creds add NAME`"
            ) from error
        return cls(path.stem, seed)

    def save(self, folder: Path) -> Path:
        """Write `<folder>/<name>.nk`, readable by its owner only."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.nk"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(self.seed + b"\n")
        return path


def inbox_prefix(name: str) -> str:
    """Where replies to a role go; only it may subscribe there."""
    return f"_INBOX_.{name}"


def permissions(role: Role, name: str, run: str) -> dict[str, Any]:
    """The server's `permissions` block for one user of one run."""
    names.checked("name", name)
    on = Subjects(run)
    inbox = f"{inbox_prefix(name)}.>"
    stream = log_stream(run)
    read_log = [
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
        "$JS.API.INFO",
    ]
    everything = on.all
    publish: dict[Role, list[str]] = {
        "admin": [">"],
        "learner": [on.run, on.observation, on.receipt, "oven.reward.*", *read_log],
        "mesh": [on.ballot("*"), on.decision("*"), on.step("*"), on.outcome("*"), on.answer("*"), *read_log],
        "history": ["_INBOX_.>", *read_log],
        "kg": ["_INBOX_.>"],
        "member": [f"{inbox_prefix('learner')}.>"],
        "agent": [on.vote(name), on.agent(name), on.history, "oven.kg.*"],
        "operator": [on.operator(name), on.history],
        "monitor": [on.history, "oven.kg.*"],
    }
    agents_hear = [on.run, on.observation, on.receipt, on.agent("*"), on.ballot("*"), on.decision("*"), on.outcome("*")]
    subscribe: dict[Role, list[str]] = {
        "admin": [">"],
        "learner": [inbox],
        "mesh": [inbox],
        "history": [on.history, inbox],
        "kg": ["oven.kg.*", "$SRV.>", inbox],
        "member": [names.reward(name), inbox],
        "agent": [*agents_hear, inbox],
        "operator": [everything, inbox],
        "monitor": [everything, inbox],
    }
    return {"publish": {"allow": publish[role]}, "subscribe": {"allow": subscribe[role]}}
