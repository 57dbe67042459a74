"""Messages that must not count, to be put between those of an honest, signed run. The same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import nkeys
from pydantic import BaseModel
from tests.support.mesh_log import LR, MOVES, NOON, RUN, SPECS, Log

from oven_core.bus.streams import LOG_BYTES, VOTE_BYTES
from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunEnded, RunStarted, Vote
from oven_core.protocol.rules import Rules
from oven_core.protocol.subjects import SIGNERS
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer

STRIDE = 1_000
"""Sequences from one honest event to the next: room for what is put between them."""
AGENTS = ("anna", "bert", "carl")
STRANGER = "stranger"

_random = random.Random(20261121)
SIGNER = {
    name: Signer(Credentials(name, bytes(nkeys.encode_seed(_random.randbytes(32), nkeys.PREFIX_BYTE_USER))))
    for name in ("learner", "mesh", "ann", "thief")
}
KEYS = {name: SIGNER[name].public for name in ("learner", "mesh", "ann")}


def signed(event: Event, name: str) -> Event:
    signature = SIGNER[name].sign(event.subject, event.message_id, event.data)
    return replace(event, signature=signature)


def honest_log() -> list[Event]:
    """Return a run in which agents propose, agree, veto and are late, and all is signed."""
    log = Log(stride=STRIDE)
    start = RunStarted(
        incarnation=1,
        n=0,
        recipe="grpo",
        actuators=SPECS,
        rules=Rules(cooldown_ticks=2, newcomers="full", alone={"anna": (LR,)}),
        keys=KEYS,
    )
    log.put("run", start)
    log.n = 1
    for agent in AGENTS:
        log.join(agent)
    answered = 0
    for tick in range(1, 121):
        log.tick()
        if tick % 6 == 0:
            log.propose("anna", (0.5, 2.0)[tick // 6 % 2], confidence=0.9)
        if tick % 6 == 1:
            log.vote("bert", ("for", "against")[tick % 4 == 1], confidence=0.8)
            log.propose("carl", 1.0 + tick / 100, actuator="grad.clip", confidence=0.7)
            log.propose("bert", 1.0 + tick / 100, actuator="grad.clip", confidence=0.7)
        for decision in [d for d in log.decisions[answered:] if d.verdict == "adopted"]:
            log.receipt(decision)
        answered = len(log.decisions)
    log.end()
    assert sum(decision.verdict == "adopted" for decision in log.decisions) > 5
    assert sum(decision.verdict == "rejected" for decision in log.decisions) > 5
    events = []
    for event in log.events:
        kind = names.kind(event.subject)
        if kind in SIGNERS:
            event = signed(replace(event, message_id=f"m{event.seq}"), SIGNERS[kind])
        events.append(event)
    return events


def read(seq: int, subject: str, data: bytes, message_id: str = "", signature: str = "") -> Event:
    return Event.read(seq, f"oven.{RUN}.{subject}", data, NOON, message_id=message_id, signature=signature)


class Mutants:
    """Makes messages that must not count, and names the counters that each one increases."""

    def __init__(self, past: list[Event]) -> None:
        self.random = random.Random(7)
        self.past = past  # the honest events so far
        self.makers: tuple[Callable[[int], tuple[Event, list[str]]], ...] = (
            self.garbage,
            self.cut,
            self.other_version,
            self.out_of_range,
            self.misplaced,
            self.oversized,
            self.unsigned,
            self.wrongly_signed,
            self.transplanted,
            self.altered,
            self.replayed,
            self.late,
            self.not_joined,
            self.nameless,
        )

    def make(self, seq: int) -> tuple[str, Event, list[str]]:
        """Return (mutation, event, counters that it increases)."""
        maker = self.random.choice(self.makers)
        event, counters = maker(seq)
        return maker.__name__, event, counters

    def garbage(self, seq: int) -> tuple[Event, list[str]]:
        data = self.random.choice(
            (
                self.random.randbytes(self.random.randrange(200)),
                b"",
                b"null",
                b"[]",
                b"NaN",
                b'{"type":"Vote"',
                b"[" * 5000,
                b'{"a":' * 500 + b"1" + b"}" * 500,
                b'{"v":1,"type":"Vote","type":"Decision"}',
                b'{"v":1,"type":["Vote"]}',
                '{"v":1,"type":"Vöte"}'.encode("utf-16"),
                b'{"stream":"OVEN-r","seq":7,"duplicate":true}',
                b"-" + b"9" * 5000,
            )
        )
        return self._unreadable(read(seq, self._subject(), data), "malformed")

    def cut(self, seq: int) -> tuple[Event, list[str]]:
        event = self.random.choice(self.past)
        end = self.random.randrange(len(event.data))
        mutant = read(seq, _tail(event), event.data[:end], event.message_id, event.signature)
        return self._unreadable(mutant, "malformed")

    def other_version(self, seq: int) -> tuple[Event, list[str]]:
        event = self.random.choice(self.past)
        version = self.random.choice((0, 2, "1", 1.5, None, 10**30, [1]))
        fields = json.loads(event.data) | {"v": version}
        return self._unreadable(read(seq, _tail(event), json.dumps(fields).encode()), "version")

    def out_of_range(self, seq: int) -> tuple[Event, list[str]]:
        field, value = self.random.choice(
            (
                ("confidence", "NaN"),
                ("confidence", "Infinity"),
                ("confidence", 1.0000001),
                ("confidence", -1e-300),
                ("confidence", None),
                ("tick", -1),
                ("tick", 1.5),
                ("tick", "NaN"),
                ("horizon", -(10**40)),
                ("stance", "approve"),
                ("actuator", {"name": LR}),
                ("value", [1.0]),
                ("value", {"a": "much"}),
                ("rationale", "x" * 2001),
                ("evidence", ["e"] * 33),
            )
        )
        vote = {"v": 1, "type": "Vote", "actuator": LR, "stance": "propose", "value": 1.0, "tick": 1, "confidence": 0.9}
        data = json.dumps(vote | {field: value}).replace('"NaN"', self.random.choice(('"NaN"', "NaN")))
        return self._unreadable(read(seq, f"vote.{self._name()}", data.encode()), "malformed")

    def misplaced(self, seq: int) -> tuple[Event, list[str]]:
        """Return a valid message on a subject that does not carry it, for example a decision in place of a vote."""
        event = self.random.choice(self.past)
        kind = names.kind(event.subject)
        subjects = (f"vote.{self._name()}", f"agent.{self._name()}", "observation", "decision.x", "nowhere")
        others = [subject for subject in subjects if subject.split(".")[0] != kind]
        mutant = read(seq, self.random.choice(others), event.data, event.message_id, event.signature)
        return self._unreadable(mutant, "misplaced")

    def oversized(self, seq: int) -> tuple[Event, list[str]]:
        """Return what no stream accepts. Rarely, because it needs many bytes."""
        size = self.random.choice((VOTE_BYTES, LOG_BYTES)) if self.random.random() < 0.02 else 4000
        vote = Vote.model_construct(actuator=LR, stance="propose", tick=1, confidence=0.9, rationale="é" * size)
        return self._unreadable(read(seq, f"vote.{self._name()}", vote.wire()), "malformed")

    def unsigned(self, seq: int) -> tuple[Event, list[str]]:
        event = self._learner_event()
        stolen = isinstance(event.body, RunStarted) and event.body.keys["learner"] != KEYS["learner"]
        return self._judged(replace(event, seq=seq, signature=""), "signature" if stolen else "unsigned")

    def wrongly_signed(self, seq: int) -> tuple[Event, list[str]]:
        """Return an event signed with a wrong key: a stranger's, or that of another role."""
        event = self._learner_event()
        own = SIGNERS[names.kind(event.subject)]
        thief = self.random.choice([name for name in SIGNER if name != own])
        mutant = signed(replace(event, seq=seq), thief)
        if self.random.random() < 0.3:
            junk = ("x", "=" * 88, "A" * 88, mutant.signature[:-4], mutant.signature + "AAAA", "é" * 40, "A" * 20_000)
            mutant = replace(mutant, signature=self.random.choice(junk))
        return self._judged(mutant, "signature")

    def transplanted(self, seq: int) -> tuple[Event, list[str]]:
        """Return a valid signature with another message id or on another subject than it was made for."""
        event = self._learner_event()
        if self.random.random() < 0.5:
            return self._judged(replace(event, seq=seq, message_id=f"{event.message_id}0"), "signature")
        own = SIGNERS[names.kind(event.subject)]
        subject = "decision.000000000001-00" if own == "mesh" else names.kind(event.subject)
        moved = read(seq, subject, event.data, event.message_id + "x", event.signature)
        fault = moved.body.fault if isinstance(moved.body, Malformed) else "signature"
        return self._judged(moved, fault)

    def altered(self, seq: int) -> tuple[Event, list[str]]:
        """Change one number under the old signature."""
        event = self._learner_event()
        fields = json.loads(event.data)
        numbers = [key for key, value in fields.items() if type(value) in (int, float) and key != "v"]
        key = self.random.choice(numbers or ["n"])
        fields[key] = fields.get(key, 0) + 1
        data = json.dumps(fields).encode()
        mutant = Event.read(seq, event.subject, data, NOON, message_id=event.message_id, signature=event.signature)
        return self._judged(mutant, mutant.body.fault if isinstance(mutant.body, Malformed) else "signature")

    def replayed(self, seq: int) -> tuple[Event, list[str]]:
        """Repeat a message of the learner or the mesh: its signature is valid, but it was logged before."""
        event = self.random.choice([event for event in self.past if names.kind(event.subject) in SIGNERS])
        kind = names.kind(event.subject)
        repeated = "learner.repeated" if SIGNERS[kind] == "learner" else f"repeated.{kind}"
        return replace(event, seq=seq), [repeated]

    def late(self, seq: int) -> tuple[Event, list[str]]:
        """Return a vote on a ballot that is closed or never existed."""
        closed = [event.body.ballot for event in self.past if isinstance(event.body, Decision) and event.body.ballot]
        ballot = self.random.choice([*closed[:-3], "000000000001-07", "~"])
        stance = self.random.choice(("propose", "for", "against"))
        vote = Vote(actuator=LR, ballot=ballot, stance=stance, value=3.0, tick=1, confidence=1.0)
        name = self.random.choice((*AGENTS, STRANGER))
        return read(seq, f"vote.{name}", vote.wire()), ["vote.late"]

    def not_joined(self, seq: int) -> tuple[Event, list[str]]:
        if self.random.random() < 0.5:
            vote = Vote(actuator=self._actuator(), stance="against", tick=1, confidence=1.0)
            return read(seq, f"vote.{STRANGER}", vote.wire()), ["refused.not_joined"]
        state: Any = self.random.choice(("done", "cannot_fire", "left"))
        status = AgentStatus(state=state, tick=2**62, seen="~", moves=MOVES)
        return read(seq, f"agent.{STRANGER}", status.wire()), ["agent.left" if state == "left" else "agent.not_joined"]

    def nameless(self, seq: int) -> tuple[Event, list[str]]:
        name = self.random.choice(("", "*", ">", "a b", "é", "x" * 65, "\x00", "ann\n"))
        status = AgentStatus(state="joined", moves=MOVES)
        return read(seq, f"agent.{name}", status.wire()), ["malformed.author"]

    def _unreadable(self, event: Event, fault: str) -> tuple[Event, list[str]]:
        kind = names.kind(event.subject)
        return event, sorted({f"malformed.{kind}", f"{fault}.{kind}"})

    _judged = _unreadable

    def _subject(self) -> str:
        from_agents = ("vote.anna", f"vote.{STRANGER}", "agent.bert")
        return self.random.choice(
            (*from_agents, "observation", "run", "receipt", "decision.x", "ballot.x", "operator.ann")
        )

    def _learner_event(self) -> Event:
        """Return a message that must be signed and that would often matter if it were accepted."""
        if self.random.random() < 0.3:
            return self._forgery()
        event = self.random.choice(self.past)
        while names.kind(event.subject) not in SIGNERS:
            event = self.random.choice(self.past)
        return event

    def _forgery(self) -> Event:
        number = self.random.randrange(10**6, 10**9)
        stolen = {name: SIGNER["thief"].public for name in KEYS}
        forged = Decision(
            id="x", ballot="", actuator=LR, verdict="adopted", value=50.0, reason="", tally=(),
            tick=1, apply_at_tick=1, expires_at_tick=10**6,
        )  # fmt: skip
        receipt = Receipt(incarnation=1, n=number, actuator=LR, status="applied", after=50.0, tick=1, step=1)
        made: tuple[str, BaseModel] = self.random.choice(
            (
                ("observation", Observation(incarnation=1, n=number, tick=10**6, step=1, progress=1, metrics={})),
                ("run", RunStarted(incarnation=number, n=0, recipe="evil", keys=stolen)),
                ("receipt", receipt),
                ("decision.x", forged),
            )
        )
        event = read(0, made[0], made[1].model_dump_json().encode(), f"f{number}")
        return signed(event, "thief")

    def _name(self) -> str:
        return self.random.choice((*AGENTS, STRANGER))

    def _actuator(self) -> str:
        return self.random.choice((*MOVES, "", "knob." + "x" * 500, "é"))


def _tail(event: Event) -> str:
    return event.subject.split(".", 2)[2]


def between(honest: list[Event], count: int) -> Iterator[tuple[Event, str, list[str]]]:
    """Return the honest events with `count` mutants spread over the gaps after the run's start."""
    past: list[Event] = []
    mutants = Mutants(past)
    end = next(index for index, event in enumerate(honest) if isinstance(event.body, RunEnded))
    gaps = end - 9  # none behind the run's end, where everything is late
    for index, event in enumerate(honest):
        yield event, "", []
        past.append(event)
        if 9 <= index < end:
            first, last = count * (index - 9) // gaps, count * (index - 8) // gaps
            assert last - first < STRIDE
            for offset in range(1, last - first + 1):
                done, mutant, counters = mutants.make(event.seq + offset)
                yield mutant, done, counters
