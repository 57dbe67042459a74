"""The table of subjects, and the addresses and permissions that follow from it."""

from __future__ import annotations

from typing import get_args

import pytest

from oven_core.protocol.messages import Message
from oven_core.protocol.names import Subjects, kg, kind, probe, reward
from oven_core.protocol.permissions import Role, permissions
from oven_core.protocol.subjects import (
    BY_KIND,
    SUBJECTS,
    Subject,
    Writer,
    log_subjects,
    votes_subjects,
)  # fmt: skip
from oven_core.protocol.unlogged_subjects import REQUESTS, UNLOGGED_SUBJECTS


def test_every_message_has_one_kind_of_subject() -> None:
    carried = [model for subject in SUBJECTS for model in subject.message_types]
    requested = [model for request in REQUESTS for model in (request.request_type, request.reply_type)]
    assert len(BY_KIND) == len(SUBJECTS)
    assert len({*carried, *requested}) == len(carried) + len(requested)
    assert all(issubclass(model, Message) for model in (*carried, *requested))


def test_addresses_are_those_of_the_table() -> None:
    on = Subjects("r")
    for subject in SUBJECTS:
        attribute = getattr(on, subject.kind)
        address = attribute("x") if subject.last_token else attribute
        assert address == subject.address("r", "x")
        assert kind(address) == subject.kind
    addresses = {request.name: request.address for request in REQUESTS}
    assert addresses.pop("history").format(run="r") == on.history
    assert addresses.pop("completions.stored").format(run="r") == on.stored_completions
    assert addresses.pop("reward").format(member="m") == reward("m")
    assert addresses.pop("probe").format(member="m") == probe("m")
    assert addresses == {name: kg(name.removeprefix("kg.")) for name in addresses}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.kind)
def test_its_writer_alone_may_publish_on_a_subject(subject: Subject) -> None:
    """The administrator apart."""
    address = subject.address("r", "ann" if subject.last_token in get_args(Writer) else "*")
    publishers = {role for role in get_args(Role) if address in permissions(role, "ann", "r")["publish"]["allow"]}
    assert publishers == {subject.writer}


def test_completions_are_read_by_monitors_and_operators_and_by_agents_that_were_granted_it() -> None:
    on = Subjects("r")
    assert {aside.pattern("r") for aside in UNLOGGED_SUBJECTS} == {on.completions}
    assert on.completions not in log_subjects("r") + votes_subjects("r")
    for role in get_args(Role):
        for granted in (False, True):
            allowed = permissions(role, "ann", "r", completions=granted)
            hears = [pattern for pattern in allowed["subscribe"]["allow"] if pattern in (on.completions, on.all, ">")]
            asks = {on.stored_completions, ">"} & set(allowed["publish"]["allow"])
            reads = role in ("operator", "monitor", "admin") or (role == "agent" and granted)
            assert bool(hears) == bool(asks) == reads
            writes = on.completions in allowed["publish"]["allow"]
            assert writes == (role == "learner")
