"""The AsyncAPI document and the JSON Schemas: whole, and true of the messages that the program writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from oven_core.protocol.asyncapi import generate_asyncapi
from oven_core.protocol.codec import json_schema, service_schema
from oven_core.protocol.history_requests import HistoryRequest
from oven_core.protocol.messages import ActuatorSpec, Decision, Observation, RunStarted, TallyLine, Vote
from oven_core.protocol.subjects import SUBJECTS, log_subjects, votes_subjects


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def resolved(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for token in reference[2:].split("/"):
        document = document[token]
    return document


def test_every_reference_leads_somewhere() -> None:
    document = generate_asyncapi()
    paths = list(references(document))
    assert len(paths) > 100
    for reference in paths:
        assert resolved(document, reference)


def test_a_channel_for_every_subject_that_the_log_takes_in() -> None:
    channels = generate_asyncapi()["channels"]
    addresses = {channel["address"] for channel in channels.values()}
    for subject in (*log_subjects("RUN"), *votes_subjects("RUN")):
        pattern = subject.replace("RUN", "{run}")
        assert any(
            a and a.split(".")[:3] == pattern.split(".")[:3] and a.count(".") == pattern.count(".") for a in addresses
        )
    for log_subject in SUBJECTS:
        assert tuple(channels[log_subject.kind]["messages"]) == tuple(
            model.__name__ for model in log_subject.message_types
        )


LR = ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.1, high=3, value=1.0)
MESSAGES = (
    RunStarted(incarnation=1, n=0, recipe="grpo", actuators=(LR,), keys={"learner": "AA=="}),
    Observation(incarnation=1, n=1, tick=1, step=1, progress=0.1, metrics={"loss": float("nan"), "reward": 0.5}),
    Vote(actuator="data.mixture", stance="propose", value={"easy": 0.5, "hard": 0.5}, tick=1, confidence=0.5),
    Decision(
        id="000000000007-00", ballot="", actuator="a", verdict="advised", value=None, reason="", tick=1,
        tally=(TallyLine(agent="lr", stance="propose", value=0.5),), apply_at_tick=2, expires_at_tick=3,
    ),
)  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_what_the_program_writes_fits_the_schema(message: Vote) -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads(message.wire()))


def test_invalid_messages_do_not_match_the_schema() -> None:
    validator = Draft202012Validator(json_schema())
    for bad in (
        {"type": "Vote"},
        {"type": "Vote", "v": 2},
        {"type": "Nothing"},
        {**json.loads(MESSAGES[2].wire()), "v": 2},
    ):
        with pytest.raises(ValidationError):
            validator.validate(bad)
    requests = Draft202012Validator(service_schema())
    requests.validate(json.loads(HistoryRequest(after=3).wire()))


def test_the_operations_match_the_permissions() -> None:
    operations = set(generate_asyncapi()["operations"])
    assert {"agent.send.vote", "agent.receive.ballot", "operator.send.operator", "mesh.send.decision"} <= operations
    assert not {"agent.send.decision", "agent.receive.vote", "monitor.send.vote", "agent.receive.operator"} & operations
