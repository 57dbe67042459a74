"""Build subject and stream names, and validate the run and agent names in them."""

from __future__ import annotations

import re

from oven_core.errors import ConfigError

NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def validate(kind: str, name: str) -> str:
    """Return `name`. Raises ConfigError if it cannot be a token of a subject, or looks like a command's option."""
    if not NAME.fullmatch(name) or name.startswith("-"):
        raise ConfigError(f"{kind} {name!r} is not a usable name: use 1 to 64 of A–Z a–z 0–9 _ -, not starting with -")
    return name


class Subjects:
    """The subjects of one run. Agents' and operators' names are tokens, so that the server's permissions cover them."""

    def __init__(self, run: str) -> None:
        base = f"oven.{validate('run', run)}"
        self.base = base
        self.run = f"{base}.run"
        self.observation = f"{base}.observation"
        self.receipt = f"{base}.receipt"
        self.history = f"{base}.history"
        self.completions = f"{base}.completions"
        """Sampled groups of completions, which are not in the log."""
        self.stored_completions = f"{base}.completions.stored"
        """Requests for stored completions."""
        self.all = f"{base}.>"

    def history_of(self, replica: str) -> str:
        """Return the subject of history requests that only this replica answers, to check whether it is running."""
        return f"{self.history}.{replica}"

    def agent(self, name: str) -> str:
        """Return the subject of an agent's statuses (AgentStatus)."""
        return f"{self.base}.agent.{name}"

    def vote(self, name: str) -> str:
        """Return the subject of an agent's votes."""
        return f"{self.base}.vote.{name}"

    def alert(self, name: str) -> str:
        """Return the subject of an agent's alerts about symptoms."""
        return f"{self.base}.alert.{name}"

    def ballot(self, ballot_id: str) -> str:
        """Return the subject of the message that opens the ballot with this id."""
        return f"{self.base}.ballot.{ballot_id}"

    def decision(self, decision_id: str) -> str:
        """Return the subject of the decision with this id."""
        return f"{self.base}.decision.{decision_id}"

    def step(self, tick: int | str) -> str:
        """Return the subject of the message that closes this tick in lockstep."""
        return f"{self.base}.step.{tick}"

    def outcome(self, decision_id: str) -> str:
        """Return the subject of the outcome of this decision."""
        return f"{self.base}.outcome.{decision_id}"

    def answer(self, answer_id: str) -> str:
        """Return the subject of the mesh's answer with this id to a command."""
        return f"{self.base}.answer.{answer_id}"

    def operator(self, name: str) -> str:
        """Return the subject of commands from an operator."""
        return f"{self.base}.operator.{name}"


def reward(member: str) -> str:
    """Return the subject on which a remote committee member receives requests for scores."""
    return f"oven.reward.{validate('member', member)}"


def probe(member: str) -> str:
    """Return the subject on which a remote committee member receives requests to test another model."""
    return f"oven.probe.{validate('member', member)}"


def kg(endpoint: str) -> str:
    """Return the subject of requests to an endpoint of the knowledge graph's service, such as "diagnose"."""
    return f"oven.kg.{endpoint}"


def inbox_prefix(name: str) -> str:
    """Return the prefix of the subjects for replies to a user. Only that user may subscribe to them."""
    return f"_INBOX_.{name}"


def score_inbox(name: str) -> str:
    """Return the prefix for replies of committee members, separate from the server's confirmations for the log."""
    return f"{inbox_prefix(name)}.score"


def kg_inbox(name: str) -> str:
    """Return the prefix for replies of the knowledge graph's service to the learner.

    The server's confirmations for the log have another prefix. Otherwise, a request with a forged reply subject could
    make the service write there. The colon keeps the prefix apart from users' names."""
    return f"{inbox_prefix(name)}:kg"


def log_stream(run: str) -> str:
    """Return the name of the stream that is the run's log."""
    return f"OVEN-{run}"


def votes_stream(run: str) -> str:
    """Return the name of the stream to which agents write, and from which the log copies their messages."""
    return f"OVEN-VOTES-{run}"


def completions_stream(run: str) -> str:
    """Return the name of the stream of sampled completions, separate from the log."""
    return f"OVEN-COMPLETIONS-{run}"


def author(subject: str) -> str:
    """Return the last token of a subject. It is the author's name if the author is an agent or an operator."""
    return subject.rsplit(".", 1)[-1]


def kind(subject: str) -> str:
    """Return the token after the run's name, for example "vote", or an empty string if there is none."""
    parts = subject.split(".", 3)
    return parts[2] if len(parts) > 2 else ""
