"""Server permissions: the subjects that each role may publish and subscribe to.

An agent's name is part of its subjects, so the server stops it from voting under another name. Agents, monitors and
operators have no access to the JetStream API, which sends replies and events to any subject that a request names.
They request earlier events on `history` instead, whose service cannot write to the inboxes of the learner and the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from oven_core.protocol import names
from oven_core.protocol.names import Subjects, completions_stream, inbox_prefix, kg_inbox, log_stream, score_inbox
from oven_core.protocol.subjects import BY_KIND, SUBJECTS, Writer, kinds_written_by, patterns_written_by
from oven_core.protocol.unlogged_subjects import UNLOGGED_SUBJECTS

Role = Literal["admin", "learner", "mesh", "history", "kg", "member", "agent", "operator", "monitor"]
"""The kinds of users of the server. Each user has a key and a name."""

LEARNER_KG_ENDPOINTS: Final = ("token_prior", "upload")
"""Endpoints of the knowledge graph's service that the learner may use."""


def permissions(
    role: Role, name: str, run: str, agents: Sequence[str] = (), *, completions: bool = False
) -> dict[str, Any]:
    """Return the server's `permissions` block for one user of one run.

    `agents` names the agents that share the user's key in one process, by default only the agent `name`. With
    `completions`, an agent may also read sampled prompts and completions, as operators and monitors do."""
    names.validate("name", name)
    agent_names = [names.validate("agent", agent) for agent in agents or (name,)]
    subjects = Subjects(run)
    inbox = f"{inbox_prefix(name)}.>"
    stream = log_stream(run)
    log_read_subjects = [
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
        "$JS.API.INFO",
    ]
    publish: dict[Role, list[str]] = {
        "admin": [">"],
        "learner": [
            *patterns_written_by(run, "learner"),
            *_unlogged_subjects(run, "learner"),
            "oven.reward.*",
            "oven.probe.*",
            *map(names.kg, LEARNER_KG_ENDPOINTS),
            *log_read_subjects,
        ],
        "mesh": [*patterns_written_by(run, "mesh"), *log_read_subjects],
        "history": ["_INBOX_.>", *log_read_subjects, *_completion_read_subjects(run)],
        "kg": ["_INBOX_.>"],
        "member": [f"{score_inbox('learner')}.*"],
        "agent": [*_named_subjects(run, "agent", agent_names), subjects.history, "oven.kg.*"],
        "operator": [*_named_subjects(run, "operator", [name]), subjects.history, subjects.stored_completions],
        "monitor": [subjects.history, subjects.stored_completions, "oven.kg.*"],
    }
    agent_readable = [subject.pattern(run) for subject in SUBJECTS if subject.agents_may_read]
    subscribe: dict[Role, list[str]] = {
        "admin": [">"],
        "learner": [inbox, f"{kg_inbox(name)}.>"],
        "mesh": [inbox],
        "history": [subjects.history, subjects.history_of("*"), subjects.stored_completions, inbox],
        "kg": ["oven.kg.*", "$SRV.>", inbox],
        "member": [names.reward(name), names.probe(name), inbox],
        "agent": [*agent_readable, inbox],
        "operator": [subjects.all, inbox],
        "monitor": [subjects.all, inbox],
    }
    block: dict[str, Any] = {"publish": {"allow": publish[role]}, "subscribe": {"allow": subscribe[role]}}
    if role in ("history", "kg"):
        # A client that has seen the learner's or the mesh's inbox could name it as the reply subject of a request.
        block["publish"]["deny"] = [f"{inbox_prefix(user)}.>" for user in ("learner", "mesh", "history")]
    if role in ("agent", "monitor"):
        # Only the learner may request token priors, which take seconds to compute.
        block["publish"]["deny"] = [*map(names.kg, LEARNER_KG_ENDPOINTS)]
    if role in ("operator", "monitor"):
        # Inboxes in requests are private, and a subscriber that joined the queue of replicas would take requests.
        block["subscribe"]["deny"] = [subjects.history, subjects.history_of("*"), subjects.stored_completions]
    if role == "agent" and completions:
        block["publish"]["allow"].append(subjects.stored_completions)
        block["subscribe"]["allow"].append(subjects.completions)
    return block


def _named_subjects(run: str, writer: Writer, user_names: Sequence[str]) -> list[str]:
    """Return the subjects that a role writes, one per kind and name at the end of the subject."""
    return [BY_KIND[kind].address(run, name) for kind in kinds_written_by(writer) for name in user_names]


def _unlogged_subjects(run: str, writer: Writer) -> list[str]:
    """Return the subjects outside the log to which a role publishes."""
    return [unlogged.pattern(run) for unlogged in UNLOGGED_SUBJECTS if unlogged.writer == writer]


def _completion_read_subjects(run: str) -> list[str]:
    """Return the API subjects for reading the stream of completions message by message, without a consumer."""
    stream = completions_stream(run)
    return [f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.STREAM.MSG.GET.{stream}"]
