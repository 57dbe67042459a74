"""What each role may publish and subscribe to, as the server's permissions.

The agent's name is in its subjects, so the server itself stops it from voting under another name. Agents, monitors and
operators have no JetStream API at all: subject permissions alone leave ways around through it (a reply subject, a
consumer's deliver subject). They catch up by asking `history`, which answers into no inbox of the learner or the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from oven_core.protocol import names
from oven_core.protocol.names import Subjects, completions_stream, log_stream
from oven_core.protocol.subjects import ASIDE, BY_KIND, SUBJECTS, Writer, kinds_by, patterns_by

Role = Literal["admin", "learner", "mesh", "history", "kg", "member", "agent", "operator", "monitor"]
"""The kinds of users of the server; each user has a key and a name."""


OF_THE_LEARNER: Final = ("token_prior", "upload")
"""The prior service's endpoints that the learner may ask."""


def inbox_prefix(name: str) -> str:
    """Where replies to a role go; only it may subscribe there."""
    return f"_INBOX_.{name}"


def score_inbox(name: str) -> str:
    """Where committee members answer: apart from the inboxes in which the log acknowledges and delivers."""
    return f"{inbox_prefix(name)}.score"


def kg_inbox(name: str) -> str:
    """Where the prior service answers the learner: apart from the inboxes in which the log acknowledges, so that no
    stranger's request can have the service write there. The colon is in no user's name."""
    return f"{inbox_prefix(name)}:kg"


def permissions(
    role: Role, name: str, run: str, agents: Sequence[str] = (), *, completions: bool = False
) -> dict[str, Any]:
    """The server's `permissions` block for one user of one run. `agents`: whom the key of a process with several agents
    speaks for; an agent's own key speaks for the agent alone. `completions`: an agent's key also reads sampled prompts
    and completions, as operators and monitors do."""
    names.checked("name", name)
    voices = [names.checked("agent", agent) for agent in agents or (name,)]
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
        "learner": [
            *(*patterns_by(run, "learner"), *_aside(run, "learner"), "oven.reward.*", "oven.probe.*"),
            *(*map(names.kg, OF_THE_LEARNER), *read_log),
        ],
        "mesh": [*patterns_by(run, "mesh"), *read_log],
        "history": ["_INBOX_.>", *read_log, *_read_completions(run)],
        "kg": ["_INBOX_.>"],
        "member": [f"{score_inbox('learner')}.*"],
        "agent": [*_own(run, "agent", voices), on.history, "oven.kg.*"],
        "operator": [*_own(run, "operator", [name]), on.history, on.stored_completions],
        "monitor": [on.history, on.stored_completions, "oven.kg.*"],
    }
    agents_hear = [subject.pattern(run) for subject in SUBJECTS if subject.agents]
    subscribe: dict[Role, list[str]] = {
        "admin": [">"],
        "learner": [inbox, f"{kg_inbox(name)}.>"],
        "mesh": [inbox],
        "history": [on.history, on.history_of("*"), on.stored_completions, inbox],
        "kg": ["oven.kg.*", "$SRV.>", inbox],
        "member": [names.reward(name), names.probe(name), inbox],
        "agent": [*agents_hear, inbox],
        "operator": [everything, inbox],
        "monitor": [everything, inbox],
    }
    held: dict[str, Any] = {"publish": {"allow": publish[role]}, "subscribe": {"allow": subscribe[role]}}
    if role in ("history", "kg"):
        # Whoever hears the learner or the mesh sees the inbox of its acknowledgements, and could name it in a request.
        held["publish"]["deny"] = [f"{inbox_prefix(other)}.>" for other in ("learner", "mesh", "history")]
    if role in ("agent", "monitor"):
        # Only the learner may request token scores, which take seconds to compute.
        held["publish"]["deny"] = [*map(names.kg, OF_THE_LEARNER)]
    if role in ("operator", "monitor"):
        # A request's reply inbox is nobody's business, and in the replicas' queue requests would go astray.
        held["subscribe"]["deny"] = [on.history, on.history_of("*"), on.stored_completions]
    if role == "agent" and completions:
        held["publish"]["allow"].append(on.stored_completions)
        held["subscribe"]["allow"].append(on.completions)
    return held


def _own(run: str, writer: Writer, voices: Sequence[str]) -> list[str]:
    """The subjects that end with one of these names and that the role writes."""
    return [BY_KIND[kind].address(run, name) for kind in kinds_by(writer) for name in voices]


def _aside(run: str, writer: Writer) -> list[str]:
    """The subjects beside the log that the role writes."""
    return [aside.pattern(run) for aside in ASIDE if aside.writer == writer]


def _read_completions(run: str) -> list[str]:
    """What is needed to read the stream of completions, message by message: no consumer, so no deliver subject."""
    stream = completions_stream(run)
    return [f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.STREAM.MSG.GET.{stream}"]
