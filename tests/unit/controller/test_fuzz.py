"""A hundred thousand messages that should not count, between those of a signed run: none does, and each is counted.

The same bytes every time (seeded), through what every reader of the log goes through: decoding, the keyring, the mesh.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.mesh_log import RUN
from tests.support.mutants import KEYS, between, honest_log

from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.security.signing import Keyring

MUTANTS = 100_000


def fingerprint(mesh: Mesh) -> str:
    """All that the mesh believes. When it last heard of an agent is left out: whoever speaks nonsense is there."""
    return json.dumps([_plain(mesh.state), _plain(mesh.ballots), _plain(mesh.pending), mesh.divergence], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):
        return None
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if dataclasses.is_dataclass(value):
        shown = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {name: value for name, value in shown.items() if name not in ("last_tick", "counters")}
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return _plain(vars(value)) if hasattr(value, "__dict__") else repr(value)


def test_no_mutant_counts() -> None:
    honest = honest_log()
    clean, clean_ring = Mesh(RUN), Keyring(KEYS["learner"])
    wanted = [output for event in honest for output in clean.step(clean_ring.verify(event))]
    assert clean.divergence is None and not clean.pending

    mesh, keyring = Mesh(RUN), Keyring(KEYS["learner"])
    emitted = []
    injected: Counter[str] = Counter()
    expected: Counter[str] = Counter(clean.state.counters)
    layers: Counter[str] = Counter()
    for event, done, counters in between(honest, MUTANTS):
        judged = keyring.verify(event)
        outputs = mesh.step(judged)
        emitted += outputs
        if not done:
            continue
        injected[done] += 1
        expected.update(counters)
        assert not outputs, f"{done}: {event!r} had {outputs} follow"
        if isinstance(event.body, Malformed):
            layers["decoding"] += 1
        elif isinstance(judged.body, Malformed):
            layers["signatures"] += 1
        else:
            layers["mesh"] += 1
    assert injected.total() == MUTANTS == layers.total()
    assert min(injected.values()) > MUTANTS // 20, injected
    assert emitted == wanted
    assert mesh.divergence is None
    assert fingerprint(mesh) == fingerprint(clean)
    assert mesh.state.counters == expected
    print("refused by", ", ".join(f"{layer} {count / MUTANTS:.1%}" for layer, count in sorted(layers.items())))


def test_a_keyring_without_a_pin_trusts_only_the_first_learner() -> None:
    honest = honest_log()
    keyring = Keyring()
    for event, done, _ in between(honest, 2_000):
        judged = keyring.verify(event)
        if not done:
            assert judged == event
        elif done in ("unsigned", "wrongly_signed", "transplanted", "altered"):
            assert isinstance(judged.body, Malformed)
    assert keyring.keys == KEYS


@pytest.mark.parametrize("flip", range(0, 512, 5))
def test_every_bit_of_a_signature_matters(flip: int) -> None:
    start, event = (e for e in honest_log()[:5] if names.kind(e.subject) in ("run", "observation"))
    keyring = Keyring(KEYS["learner"])
    keyring.verify(start)
    raw = bytearray(base64.b64decode(event.signature))
    raw[flip // 8] ^= 1 << flip % 8
    assert keyring.verify(event) == event
    forged = keyring.verify(replace(event, signature=base64.b64encode(raw).decode()))
    assert isinstance(forged.body, Malformed) and forged.body.fault == "signature"
