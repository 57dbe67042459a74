"""Signatures: what counts, what does not, and that nothing which is fed to a keyring makes it raise."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Message, Observation, Receipt, RunStarted, StepClosed, Vote
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import OperatorCommand, OperatorKey
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring, Signer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ON = Subjects("r")
NAMES = ("learner", "mesh", "ann", "bob", "stranger")
KEYS = {name: Signer(Credentials.new(name)) for name in NAMES}
PUBLIC = {name: KEYS[name].public for name in ("learner", "mesh", "ann")}
PIN = PUBLIC["learner"]
DECISION = Decision(
    id="000000000004-00", ballot="b", actuator="rate", verdict="adopted", value=2.0, reason="", tally=(),
    tick=1, apply_at_tick=2, expires_at_tick=9,
)  # fmt: skip
SEEN = Observation(incarnation=1, n=2, tick=1, step=1, progress=0, metrics={"loss": 1.0})
TAKEN = Receipt(
    incarnation=1, n=3, decision_id="d", actuator="rate", status="noop", before=1.0, after=1.0, tick=1, step=1
)
HELD = OperatorCommand(id="c", action="hold")
SAID: dict[str, tuple[str, Message, str]] = {
    "observation": (ON.observation, SEEN, "learner"),
    "receipt": (ON.receipt, TAKEN, "learner"),
    "decision": (ON.decision(DECISION.id), DECISION, "mesh"),
    "step": (ON.step(1), StepClosed(tick=1), "mesh"),
    "operator": (ON.operator("ann"), HELD, "ann"),
}


def event(subject: str, body: Message | bytes, signer: str | None, message_id: str = "1-1", seq: int = 2) -> Event:
    data = body if isinstance(body, bytes) else body.wire()
    signature = KEYS[signer].sign(subject, message_id, data) if signer else ""
    return Event.read(seq, subject, data, NOON, message_id=message_id, signature=signature)


def started(signer: str | None = "learner", incarnation: int = 1, keys: dict[str, str] | None = None) -> Event:
    body = RunStarted(incarnation=incarnation, n=1, recipe="toy", keys=PUBLIC if keys is None else keys)
    return event(ON.run, body, signer, seq=1)


def begun(pin: str | None = PIN, **how: Any) -> Keyring:
    keyring = Keyring(pin, **how)
    assert fault(keyring, started()) == ""
    return keyring


def fault(keyring: Keyring, event: Event) -> str:
    verified = keyring.verify(event)
    assert dataclasses.replace(verified, body=event.body) == event, "only the body is replaced"
    return verified.body.fault if isinstance(verified.body, Malformed) else ""


@pytest.mark.parametrize("pin", [PIN, None], ids=["pinned", "not"])
@pytest.mark.parametrize("kind", SAID)
def test_only_the_signer_of_a_subject_counts(kind: str, pin: str | None) -> None:
    subject, body, who = SAID[kind]
    keyring = begun(pin)
    assert {name: fault(keyring, event(subject, body, name)) for name in NAMES} == {
        name: "" if name == who else "signature" for name in NAMES
    }
    assert fault(keyring, event(subject, body, None)) == "unsigned"


@pytest.mark.parametrize("kind", SAID)
def test_a_signature_holds_for_its_subject_id_and_body_alone(kind: str) -> None:
    subject, body, who = SAID[kind]
    keyring, real = begun(), event(subject, body, who)
    spaced = real.data[:-1] + b" }"
    moved = subject.rsplit(".", 1)[0] + ".other" if subject.count(".") > 2 else subject.replace(".r.", ".s.")
    other_run = subject.replace("oven.r.", "oven.s.")
    for altered in (
        dataclasses.replace(real, data=spaced),
        dataclasses.replace(real, message_id="1-2"),
        dataclasses.replace(real, message_id=""),
        dataclasses.replace(real, subject=other_run),
        dataclasses.replace(real, signature=real.signature[:-4]),
        dataclasses.replace(real, signature="ä" * 88),
        dataclasses.replace(real, signature=real.signature + "\n"),
    ):
        assert fault(keyring, altered) == "signature", altered
    assert fault(keyring, dataclasses.replace(real, subject=moved)) in ("signature", "unsigned")
    assert fault(keyring, dataclasses.replace(real, seq=99, time=NOON.replace(year=2027))) == ""


def test_a_line_break_in_the_id_makes_no_second_reading() -> None:
    keyring, (subject, body, who) = begun(), SAID["observation"]
    real = event(subject, b"\n" + body.wire(), who, message_id="a")
    assert fault(keyring, real) == ""
    shifted = event(subject, body, None, message_id="a\n")
    assert fault(keyring, dataclasses.replace(shifted, signature=real.signature)) == "signature"


def test_agents_need_no_signature() -> None:
    vote = event(ON.vote("lr"), Vote(actuator="rate", stance="abstain", confidence=0, tick=1), None)
    assert fault(begun(), vote) == fault(Keyring(), vote) == ""


def test_events_before_the_start_are_unsigned() -> None:
    for subject, body, who in SAID.values():
        assert fault(Keyring(), event(subject, body, who)) == "unsigned"
        assert fault(Keyring(PIN), event(subject, body, who)) == "unsigned"


def test_with_a_pin_no_other_learner_begins_the_run() -> None:
    theirs = {"learner": KEYS["stranger"].public, "mesh": PUBLIC["mesh"]}
    keyring = Keyring(PIN)
    assert fault(keyring, started("stranger")) == "signature"
    assert fault(keyring, started("stranger", keys=theirs)) == "signature"
    assert fault(keyring, started(None)) == "unsigned"
    assert fault(keyring, started(None, keys={})) == "unsigned"
    assert keyring.keys is None
    assert fault(keyring, started()) == "" and keyring.keys == PUBLIC


def test_without_a_pin_the_first_learner_is_trusted() -> None:
    keyring = begun(None)
    theirs = {"learner": KEYS["stranger"].public}
    assert fault(keyring, started("stranger", 2, theirs)) == "signature"
    assert fault(keyring, started(None, 2, {})) == "unsigned"
    assert keyring.keys == PUBLIC


def test_a_later_incarnation_changes_the_keys_and_a_repeated_one_does_not() -> None:
    keyring, command = begun(), event(ON.operator("bob"), HELD, "bob")
    assert fault(keyring, command) == "unsigned"
    more = {"learner": PIN, "mesh": PUBLIC["mesh"], "bob": KEYS["bob"].public}
    assert fault(keyring, started("learner", 2, more)) == ""
    assert fault(keyring, command) == ""
    assert fault(keyring, started()) == ""
    assert fault(keyring, command) == ""
    assert fault(keyring, event(ON.operator("ann"), HELD, "ann")) == "unsigned", "ann is no operator any more"


@pytest.mark.parametrize("name", ["learner", "mesh"])
def test_learner_and_mesh_cannot_sign_as_operators(name: str) -> None:
    assert fault(begun(), event(ON.operator(name), HELD, name)) == "unsigned"


@pytest.mark.parametrize(
    "keys",
    [{"mesh": PUBLIC["mesh"]}, PUBLIC | {"ann": "AAAA"}, PUBLIC | {"ann": "no base64"}],
    ids=["without learner", "too short", "no base64"],
)
def test_a_start_with_invalid_keys_is_ignored(keys: dict[str, str]) -> None:
    for pin in (PIN, None):
        assert fault(Keyring(pin), started(keys=keys)) == "signature"


def test_a_run_without_keys_is_not_signed() -> None:
    keyring = Keyring()
    assert fault(keyring, started(None, keys={})) == ""
    for subject, body, _ in SAID.values():
        assert fault(keyring, event(subject, body, None)) == ""
        assert fault(keyring, event(subject, body, "stranger")) == ""


def test_unchecked_a_signature_need_only_be_there() -> None:
    subject, body, _ = SAID["decision"]
    events = [started(), event(subject, body, "stranger"), event(subject, body, None)]
    faults = [
        verified.body.fault if isinstance(verified.body, Malformed) else ""
        for verified in map(Keyring(PIN, check=False).verify, events)
    ]
    assert faults == ["", "", "unsigned"]
    assert fault(Keyring(check=False), started("stranger")) == "signature", "the keys themselves are always checked"


def test_a_malformed_event_stays_malformed() -> None:
    assert fault(begun(), event(ON.decision("x"), b'{"stream":"OVEN-r","seq":7}', "mesh")) == "malformed"


def test_the_signing_key_is_derived_and_differs_from_the_nkey() -> None:
    import base64

    import nkeys

    credentials = Credentials.new("mesh")
    again = Signer(Credentials("elsewhere", credentials.seed))
    assert Signer(credentials).public == again.public
    raw = base64.b32decode(credentials.public + "=" * (-len(credentials.public) % 8))[1:33]
    assert nkeys.from_seed(bytearray(credentials.seed)).public_key.decode() == credentials.public
    assert base64.b64decode(again.public) != raw


@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=100), st.sampled_from(sorted(SAID)))
def test_the_keyring_never_raises(data: bytes, message_id: str, signature: str, kind: str) -> None:
    subject, body, _ = SAID[kind]
    keyring = begun()
    for raw in (data, body.wire()):
        verified = keyring.verify(Event.read(9, subject, raw, NOON, message_id=message_id, signature=signature))
        assert isinstance(verified.body, Malformed)


@given(st.binary(max_size=400), st.sampled_from(["decision.x", "vote.lr", "observation"]))
def test_every_byte_survives_an_export_and_history(data: bytes, kind: str) -> None:
    logged = Event.read(3, f"oven.r.{kind}", data, NOON, message_id="1-1", signature="abc=")
    again = Event.from_line(logged.line())
    assert (again, again.data) == (logged, data)
    restored = Event.from_logged(logged.to_logged())
    assert restored == logged or (restored.data == b"" and isinstance(logged.body, Malformed))


@given(st.lists(st.sampled_from([b" ", b"\n", b"\r", b"\t"]), max_size=6))
def test_white_space_that_was_signed_survives_an_export(spaces: list[bytes]) -> None:
    subject, body, who = SAID["operator"]
    signed = event(subject, b"".join(spaces) + body.wire(), who)
    lines = [started().line(), signed.line()]
    assert all("\n" not in line and "\r" not in line for line in lines)
    assert [verified.body for verified in map(Keyring(PIN).verify, map(Event.from_line, lines))][1] == body


def test_a_verified_and_printed_event_verifies_again() -> None:
    subject, body, _ = SAID["decision"]
    forged = begun().verify(event(subject, body, "stranger"))
    assert '"type": "Malformed"' in forged.line() and '"fault": "signature"' in forged.line()
    assert Event.from_line(forged.line()).body == body


OPERATOR = Signer(Credentials.new("operator"))
WITH_OPERATOR = PUBLIC | {"operator": OPERATOR.public}


def named(name: str, key: str, by: str = "operator", signer: Signer = OPERATOR, message_id: str = "k") -> Event:
    subject, data = ON.operator(by), OperatorKey(name=name, key=key).wire()
    signature = signer.sign(subject, message_id, data)
    return Event.read(2, subject, data, NOON, message_id=message_id, signature=signature)


def with_operator(**how: Any) -> Keyring:
    keyring = Keyring(PIN, **how)
    assert fault(keyring, started(keys=WITH_OPERATOR)) == ""
    return keyring


@pytest.mark.parametrize("check", [True, False])
def test_a_persons_key_counts_until_it_is_revoked(check: bool) -> None:
    keyring, held = with_operator(check=check), event(ON.operator("bob"), HELD, "bob")
    assert fault(keyring, held) == "unsigned"
    assert fault(keyring, named("bob", KEYS["bob"].public)) == ""
    assert fault(keyring, held) == fault(keyring, event(ON.operator("ann"), HELD, "ann")) == ""
    assert fault(keyring, event(ON.operator("bob"), HELD, None)) == "unsigned"
    if check:
        assert fault(keyring, event(ON.operator("bob"), HELD, "ann")) == "signature"
    assert fault(keyring, named("bob", "", message_id="k2")) == ""
    assert fault(keyring, held) == "unsigned"
    # The learner says anew who signs.
    assert fault(keyring, named("bob", KEYS["bob"].public)) == ""
    assert fault(keyring, started(incarnation=2, keys=WITH_OPERATOR)) == ""
    assert fault(keyring, held) == "unsigned"


@pytest.mark.parametrize("check", [True, False])
def test_only_the_stacks_operator_adds_and_revokes_keys(check: bool) -> None:
    stranger, mallory = KEYS["stranger"], KEYS["bob"].public
    for what, wrong_event in {
        "another person": named("bob", mallory, by="ann", signer=KEYS["ann"]),
        "a person in the operator's place": named("bob", mallory, signer=KEYS["ann"]),
        "a stranger": named("bob", mallory, signer=stranger),
        "the mesh": named("bob", mallory, by="mesh", signer=KEYS["mesh"]),
        "of the learner": named("learner", mallory),
        "of the mesh": named("mesh", mallory),
        "of itself": named("operator", mallory),
        "of none": named("bob", "AAAA"),
        "of two": named("a.b", mallory),
    }.items():
        keyring = with_operator(check=check)
        assert fault(keyring, wrong_event) in ("unsigned", "signature"), what
        assert keyring.keys == WITH_OPERATOR, what
    unsigned = Keyring()
    assert fault(unsigned, started(None, keys={})) == fault(unsigned, named("bob", mallory)) == ""
    assert unsigned.keys == {}, "an unsigned run stays one"
