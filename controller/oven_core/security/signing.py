"""Signatures of events: all except agents' are signed, and one whose signature fails is ignored.

Permissions on subjects leave ways around (a server can be made to write on a subject for somebody who may not), so
learner, mesh and operators sign what they append: ed25519 (RFC 8032) over subject, message id and body, in a header.
Not a MAC, since anyone who can check one can forge one. Agents' events are unsigned: the server holds their names.

The public keys stand in `RunStarted.keys`, signed by the learner, whose own key readers know from elsewhere (the pin).
Persons come and go meanwhile: an OperatorKey, signed by the stack's own operator, adds one person's key or takes it
back, until the next RunStarted says anew who signs.
Verifying depends on the log's order alone, so that mesh, learner, agents and monitors skip the same events.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file
from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.operator_messages import OperatorKey
from oven_core.protocol.subjects import SIGNERS, UNSIGNED
from oven_core.security.credentials import Credentials

LEARNER, MESH, OPERATOR = "learner", "mesh", "operator"
"""Who signs of the stack itself; the names of persons are others."""


def signed_bytes(subject: str, message_id: str, data: bytes) -> bytes:
    """What a signature is over. Neither a subject nor a message id holds a line break, so it reads one way only."""
    return b"\n".join((b"oven1", subject.encode(), message_id.encode(), data))


class Signer:
    """Signs under a role's name. The key is derived from the nkey's seed (keyed BLAKE2b, RFC 7693) and is not the nkey:
    that one signs whatever nonce the server sends at connect, so a hostile server could have an event signed."""

    def __init__(self, credentials: Credentials) -> None:
        _, seed = nkeys.decode_seed(credentials.seed)
        self._key = SigningKey(hashlib.blake2b(key=bytes(seed), person=b"oven-signature", digest_size=32).digest())
        self.public = base64.b64encode(self._key.verify_key.encode()).decode()

    def sign(self, subject: str, message_id: str, data: bytes) -> str:
        """The value of the header `Oven-Signature`, base64. `message_id`: the header `Nats-Msg-Id`, or empty."""
        return base64.b64encode(self._key.sign(signed_bytes(subject, message_id, data)).signature).decode()


class Keyring:
    """Verifies events, fed in the log's order; learns the keys from `RunStarted`. Pure: no clock, no I/O, never raises.

    With a `pin` (the learner's public key, base64) only a RunStarted signed by it counts. Without one the first that
    comes is believed, and a later one must be signed by the same key; a first one without keys makes the run an
    unsigned one, in which nothing is checked. What is in the log before a RunStarted cannot be verified and counts
    as unsigned.

    `check=False` asks of a signature only that it is there, those of RunStarted and OperatorKey apart: a quick way
    through a log (0.7 µs per event instead of 50), which comes to the same unless a signature is wrong.
    """

    def __init__(self, pin: str | None = None, *, check: bool = True) -> None:
        self._learner = pin or ""
        self._check = check
        self._incarnation = 0
        self._verify_keys: dict[str, VerifyKey] = {}
        self.keys: Mapping[str, str] | None = None
        """Name → public key, by the newest RunStarted and what OperatorKeys changed since; empty in an unsigned run;
        None before it began."""

    @classmethod
    def knowing(cls, keys: Mapping[str, str]) -> Keyring:
        """One that has the keys from elsewhere (a run's keys.json) and need not wait for RunStarted; without any it is
        an unsigned run's. Raises ValueError for a malformed key."""
        made = cls(keys.get(LEARNER))
        made.keys, made._verify_keys = dict(keys), {name: public_key(text) for name, text in keys.items()}
        return made

    def verify(self, event: Event) -> Event:
        """The event itself if it counts, else with a Malformed body that says why not."""
        if isinstance(event.body, Malformed):
            return event
        kind = names.kind(event.subject)
        if kind in UNSIGNED:
            return event
        fault = self._started(event, event.body) if isinstance(event.body, RunStarted) else self._other(event, kind)
        return replace(event, body=fault) if fault else event

    def _started(self, event: Event, body: RunStarted) -> Malformed | None:
        if not body.keys:
            if self._learner:
                return _unsigned("it names no keys, and this run is a signed one")
            if self.keys is None:
                self.keys, self._incarnation = {}, body.incarnation
            return None
        try:
            keys = {name: public_key(text) for name, text in body.keys.items()}
        except ValueError as error:
            return _wrong(f"it names a key that is none: {error}")
        if LEARNER not in keys:
            return _wrong("it names keys, and not the learner's")
        if self._learner and body.keys[LEARNER] != self._learner:
            return _wrong("it names another learner's key than this run's")
        if fault := _held_by(LEARNER, keys[LEARNER], event):
            return fault
        self._learner = body.keys[LEARNER]
        if not self.keys or body.incarnation > self._incarnation:  # an old one, said again, brings no old key back
            self._incarnation, self.keys, self._verify_keys = body.incarnation, body.keys, keys
        return None

    def _other(self, event: Event, kind: str) -> Malformed | None:
        if self.keys is None:
            return _unsigned("it stands before the run's start, which says whose signatures count")
        if not self.keys:
            return None
        name = SIGNERS.get(kind, event.author)
        if kind not in SIGNERS and (kind != "operator" or name in (LEARNER, MESH)):
            return _unsigned(f"no one signs as {name!r} on a subject of the kind {kind!r}")
        if name not in self._verify_keys:
            return _unsigned(f"RunStarted names no key of {name!r}")
        changes = isinstance(event.body, OperatorKey)
        fault = _held_by(name, self._verify_keys[name], event, self._check or changes)
        return self._persons_key(name, event.body) if fault is None and isinstance(event.body, OperatorKey) else fault

    def _persons_key(self, signer: str, body: OperatorKey) -> Malformed | None:
        """Take a person's key, or take it back."""
        if signer != OPERATOR:
            return _unsigned(f"only {OPERATOR!r} says whose keys count, and {signer!r} signed it")
        if body.name in (LEARNER, MESH, OPERATOR) or not names.NAME.fullmatch(body.name):
            return _unsigned(f"the key of {body.name!r} is not one that comes and goes")
        try:
            key = public_key(body.key) if body.key else None
        except ValueError as error:
            return _wrong(f"it names a key that is none: {error}")
        keys, verify_keys = dict(self.keys or {}), dict(self._verify_keys)
        if key is None:
            keys.pop(body.name, None)
            verify_keys.pop(body.name, None)
        else:
            keys[body.name], verify_keys[body.name] = body.key, key
        self.keys, self._verify_keys = keys, verify_keys
        return None


def public_key(text: str) -> VerifyKey:
    """Raises ValueError when the text is not the base64 of 32 bytes."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 32:
        raise ValueError(f"{len(raw)} bytes where an ed25519 key has 32")
    return VerifyKey(raw)


def load_keys(path: Path) -> dict[str, str]:
    """The names and public keys of a keys.json. Raises ConfigError."""
    data = read_file(path, "the public keys")
    try:
        keys = {str(name): str(key) for name, key in json.loads(data).items()}
        for key in keys.values():
            public_key(key)
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not a list of public keys ({reason(error)}); `oven-controller creds server` writes one"
        ) from error
    return keys


def _held_by(name: str, key: VerifyKey, event: Event, check: bool = True) -> Malformed | None:
    if not event.signature:
        return _unsigned(f"it is not signed; {name!r} signs here")
    if check and not _holds(key, event):
        return _wrong(f"its signature is not that of {name!r} over this subject, message id and body")
    return None


def _holds(key: VerifyKey, event: Event) -> bool:
    if "\n" in event.message_id:
        return False
    try:
        signature = base64.b64decode(event.signature, validate=True)
        key.verify(signed_bytes(event.subject, event.message_id, event.data), signature)
    except (BadSignatureError, ValueError):  # also for what is no base64, or has another length
        return False
    return True


def _unsigned(reason: str) -> Malformed:
    return Malformed(reason=reason, fault="unsigned")


def _wrong(reason: str) -> Malformed:
    return Malformed(reason=reason, fault="signature")
