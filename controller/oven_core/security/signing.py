"""Sign and verify events. All events except those of agents are signed. Events with a wrong signature are ignored.

Permissions on subjects are not enough, because a user can make the server write to a forbidden subject. So the learner,
the mesh and operators sign the messages that they append. A header contains the ed25519 signature (RFC 8032) of the
subject, message id and body. A MAC would not be enough, because anyone who can check a MAC can forge it. Agents do not
sign, because the server lets each agent publish only under its own name.

The public keys are in `RunStarted.keys`, which the learner signs. Readers know the learner's public key beforehand (the
pin). An OperatorKey, signed by the stack's operator, adds or revokes one person's key until the next RunStarted.

Verification depends only on the order of the log, so the mesh, the learner, agents and monitors skip the same events.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from oven_core.security.credentials import Credentials

KEYS = "keys.json"
"""Name of the file with the public keys of all signers."""
LEARNER, MESH, OPERATOR = "learner", "mesh", "operator"
"""Names of the signers that belong to the stack. People have other names."""


def signed_bytes(subject: str, message_id: str, data: bytes) -> bytes:
    """Return the bytes that a signature covers. Subjects and message ids contain no line breaks."""
    return b"\n".join((b"oven1", subject.encode(), message_id.encode(), data))


class Signer:
    """Signs events for a role, with a key derived from the nkey's seed (keyed BLAKE2b, RFC 7693).

    The nkey itself signs any nonce that the server sends when the client connects. If it also signed events, a hostile
    server could send an event as the nonce and obtain its signature."""

    def __init__(self, credentials: Credentials) -> None:
        import nkeys  # here because readers, who only verify, do not need it

        _, seed = nkeys.decode_seed(credentials.seed)
        self._key = SigningKey(hashlib.blake2b(key=bytes(seed), person=b"oven-signature", digest_size=32).digest())
        self.public = base64.b64encode(self._key.verify_key.encode()).decode()

    def sign(self, subject: str, message_id: str, data: bytes) -> str:
        """Return the value of the header `Oven-Signature`. `message_id` is the header `Nats-Msg-Id`, or empty."""
        return base64.b64encode(self._key.sign(signed_bytes(subject, message_id, data)).signature).decode()


class Keyring:
    """Verifies events in log order, with the keys in `RunStarted`, without a clock or I/O.

    With a `pin` (the learner's public key, base64), only a RunStarted signed with that key counts. Without a pin, the
    first RunStarted is trusted, and later ones must be signed with the same key. If the first one has no keys, the run
    is unsigned and nothing is checked. Events before the first RunStarted cannot be verified and count as unsigned.

    With `check=False`, only RunStarted and OperatorKey are verified. Other signatures only have to be present. This is
    much faster (0.7 µs per event instead of 50 µs), and has the same result unless a signature is wrong."""

    def __init__(self, pin: str | None = None, *, check: bool = True) -> None:
        self._learner = pin or ""
        self._check = check
        self._incarnation = 0
        self._verify_keys: dict[str, VerifyKey] = {}
        self.keys: Mapping[str, str] | None = None
        """Public keys by the signer's name. Empty for an unsigned run, and None before the run has started."""

    @classmethod
    def with_keys(cls, keys: Mapping[str, str]) -> Keyring:
        """Return a keyring with the keys in a run's keys.json, so that it need not wait for RunStarted.

        If `keys` is empty, the run is unsigned. Raises ValueError for a malformed key."""
        keyring = cls(keys.get(LEARNER))
        keyring.keys, keyring._verify_keys = dict(keys), {name: decode_public_key(text) for name, text in keys.items()}
        return keyring

    def verify(self, event: Event) -> Event:
        """Return the event if it is valid, or else a copy with a Malformed body that states the reason."""
        if isinstance(event.body, Malformed):
            return event
        kind = names.kind(event.subject)
        if kind in UNSIGNED:
            return event
        if isinstance(event.body, RunStarted):
            fault = self._verify_start(event, event.body)
        else:
            fault = self._verify_signer(event, kind)
        return replace(event, body=fault) if fault else event

    def _verify_start(self, event: Event, body: RunStarted) -> Malformed | None:
        if not body.keys:
            if self._learner:
                return _unsigned_fault("it has no keys, but this run is signed")
            if self.keys is None:
                self.keys, self._incarnation = {}, body.incarnation
            return None
        try:
            keys = {name: decode_public_key(text) for name, text in body.keys.items()}
        except ValueError as error:
            return _signature_fault(f"it has an invalid key: {error}")
        if LEARNER not in keys:
            return _signature_fault("it has keys, but not the learner's key")
        if self._learner and body.keys[LEARNER] != self._learner:
            return _signature_fault("its learner key is not the learner key of this run")
        if fault := _check_signature(LEARNER, keys[LEARNER], event):
            return fault
        self._learner = body.keys[LEARNER]
        # A copy of an old RunStarted must not restore old keys.
        if not self.keys or body.incarnation > self._incarnation:
            self._incarnation, self.keys, self._verify_keys = body.incarnation, body.keys, keys
        return None

    def _verify_signer(self, event: Event, kind: str) -> Malformed | None:
        if self.keys is None:
            return _unsigned_fault("it precedes RunStarted, which has the keys")
        if not self.keys:
            return None
        name = SIGNERS.get(kind, event.author)
        if kind not in SIGNERS and (kind != "operator" or name in (LEARNER, MESH)):
            return _unsigned_fault(f"{name!r} does not sign on subjects of the kind {kind!r}")
        if name not in self._verify_keys:
            return _unsigned_fault(f"RunStarted has no key for {name!r}")
        changed_key = event.body if isinstance(event.body, OperatorKey) else None
        fault = _check_signature(name, self._verify_keys[name], event, self._check or changed_key is not None)
        if fault is None and changed_key is not None:
            fault = self._change_key(name, changed_key)
        return fault

    def _change_key(self, signer: str, body: OperatorKey) -> Malformed | None:
        """Add or revoke a person's key."""
        if signer != OPERATOR:
            return _unsigned_fault(f"only {OPERATOR!r} may add and revoke keys, but {signer!r} signed it")
        if body.name in (LEARNER, MESH, OPERATOR) or not names.NAME.fullmatch(body.name):
            return _unsigned_fault(f"the key of {body.name!r} cannot be added or revoked")
        try:
            key = decode_public_key(body.key) if body.key else None
        except ValueError as error:
            return _signature_fault(f"it has an invalid key: {error}")
        keys, verify_keys = dict(self.keys or {}), dict(self._verify_keys)
        if key is None:
            keys.pop(body.name, None)
            verify_keys.pop(body.name, None)
        else:
            keys[body.name], verify_keys[body.name] = body.key, key
        self.keys, self._verify_keys = keys, verify_keys
        return None


def decode_public_key(text: str) -> VerifyKey:
    """Decode a public key. Raises ValueError if the text is not the base64 of 32 bytes."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 32:
        raise ValueError(f"it has {len(raw)} bytes, but an ed25519 key has 32")
    return VerifyKey(raw)


def load_keys(path: Path) -> dict[str, str]:
    """Return the public keys in a keys.json, by name. Raises ConfigError."""
    data = read_file(path, "the public keys")
    try:
        keys = {str(name): str(key) for name, key in json.loads(data).items()}
        for key in keys.values():
            decode_public_key(key)
    except (ValueError, AttributeError, RecursionError) as error:
        remedy = "`oven-controller creds server` writes one"
        raise ConfigError(f"{path} must be a list of public keys ({reason(error)}); {remedy}") from error
    return keys


def _check_signature(name: str, key: VerifyKey, event: Event, check: bool = True) -> Malformed | None:
    if not event.signature:
        return _unsigned_fault(f"it is not signed, but {name!r} must sign it")
    if check and not _is_valid(key, event):
        return _signature_fault(f"its signature by {name!r} does not match its subject, message id and body")
    return None


def _is_valid(key: VerifyKey, event: Event) -> bool:
    if "\n" in event.message_id:
        return False
    try:
        signature = base64.b64decode(event.signature, validate=True)
        key.verify(signed_bytes(event.subject, event.message_id, event.data), signature)
    except (BadSignatureError, ValueError):  # ValueError: not base64, or a wrong length
        return False
    return True


def _unsigned_fault(reason: str) -> Malformed:
    return Malformed(reason=reason, fault="unsigned")


def _signature_fault(reason: str) -> Malformed:
    return Malformed(reason=reason, fault="signature")
