"""The session around an agent: when it may speak, what it does not repeat, and what a fault of the agent's costs."""

from __future__ import annotations

import pytest
from tests.support.gauges import observe, receipt, started

from oven_agents import Agent, Window
from oven_agents.sdk.agent_session import MAX_FAILURES, Session
from oven_agents.sdk.alternative_plans import GraphReview, without_graph
from oven_agents.shipped.graph import Graph
from oven_core.protocol.messages import AgentStatus, BallotOpened, Decision, RunEnded, Vote


@pytest.mark.parametrize("error", [KeyError("typo"), SystemExit(0)], ids=["raises", "exits"])
def test_an_agent_that_always_raises_says_so_once_and_goes_quiet(error: BaseException) -> None:
    """One that calls sys.exit() would end the process, with the agents beside it, and as if all were well."""

    class Faulty(Agent):
        def vote(self, window: Window) -> Vote:
            raise error

    session = Session(Faulty(), "me")
    session.absorb(started())
    messages: list[object] = []
    for tick in range(1, MAX_FAILURES + 20):
        session.absorb(observe(tick, reward=0.1))
        messages += session.react()
    reasons = [m.reason for m in messages if isinstance(m, AgentStatus) and m.state == "failed"]
    assert len(reasons) == 1 and type(error).__name__ in reasons[0]
    assert len(session.problems) == MAX_FAILURES


class Eager(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window: Window) -> Vote:
        return window.propose("optimizer.lr_scale", 2.0, confidence=0.9, why="always")

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return window.answer(ballot, "against", confidence=0.8, why="never")


def test_a_session_does_not_repeat_itself_while_its_proposal_is_open_in_flight_or_cooling() -> None:
    session = Session(Eager(), "me")
    session.absorb(started())

    def proposals(tick: int) -> int:
        session.absorb(observe(tick, reward=0.1))
        return sum(isinstance(message, Vote) for message in session.react())

    assert proposals(1) == 1
    ballot = BallotOpened(
        id="1", actuator="optimizer.lr_scale", proposal=2.0, opened_by="me", tick=1, closes_at_tick=4, eligible=("me",)
    )
    session.absorb(ballot)
    assert proposals(2) == 0
    session.absorb(
        Decision(
            id="d",
            ballot="1",
            actuator="optimizer.lr_scale",
            verdict="adopted",
            value=2.0,
            reason="",
            tally=(),
            tick=2,
            apply_at_tick=3,
            expires_at_tick=9,
        )
    )
    assert proposals(3) == 0, "in flight"
    session.absorb(receipt(3, "optimizer.lr_scale", 1.0, 2.0).model_copy(update={"n": 4}))
    assert proposals(5) == 0, "cooling"
    assert proposals(7) == 1


def test_a_decision_that_comes_twice_does_not_silence_the_agent() -> None:
    """Live and from history: the second copy must not put the decision back in flight."""
    session = Session(Eager(), "me")
    session.absorb(started())
    decision = Decision(
        id="000000000009-00",
        ballot="b",
        actuator="optimizer.lr_scale",
        verdict="adopted",
        value=2.0,
        reason="",
        tally=(),
        tick=2,
        apply_at_tick=3,
        expires_at_tick=9,
    )
    session.absorb(decision)
    session.absorb(receipt(3, "optimizer.lr_scale", 1.0, 2.0).model_copy(update={"n": 4, "decision_id": decision.id}))
    session.absorb(decision)
    session.absorb(observe(30, reward=0.1))
    assert any(isinstance(message, Vote) for message in session.react())


@pytest.mark.parametrize(("silent_ticks", "ticks"), [(3, [1, 2, 3]), (50, [1, 11, 21])])
def test_an_agent_shows_often_enough_that_it_is_alive(silent_ticks: int, ticks: list[int]) -> None:
    class Silent(Agent):
        def vote(self, window: Window) -> None:
            return None

    run, session = started(), Session(Silent(), "me")
    session.absorb(run.model_copy(update={"rules": run.rules.model_copy(update={"silent_ticks": silent_ticks})}))
    heartbeats = list[int]()
    for tick in range(1, 25):
        session.absorb(observe(tick, reward=0.1))
        heartbeats += [m.tick for m in session.react() if isinstance(m, AgentStatus) and m.state == "done"]
    assert heartbeats[:3] == ticks


def test_in_lockstep_the_last_status_can_be_repeated() -> None:
    session = Session(Eager(), "me")
    session.absorb(started().model_copy(update={"lockstep": True}))
    awaited = [session.awaited_status]
    session.absorb(observe(1, reward=0.1))
    session.react()
    awaited.append(session.awaited_status)
    session.absorb(RunEnded(incarnation=1, n=2, reason="completed", tick=1, step=1))
    awaited.append(session.awaited_status)
    assert awaited == [None, AgentStatus(state="done", tick=1), None], "nothing was asked yet; nobody waits any more"


BALLOT = BallotOpened(
    id="7",
    actuator="optimizer.lr_scale",
    proposal=3.0,
    opened_by="other",
    tick=1,
    closes_at_tick=4,
    eligible=("me", "other"),
)


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_new_ballot_is_answered_at_once_and_marked_as_seen(lockstep: bool) -> None:
    """The mesh waits for the mark only where the answer is not enough."""

    class Opponent(Eager):
        def vote(self, window: Window) -> None:  # type: ignore[override]
            return None

    session = Session(Opponent(), "me")
    session.absorb(started().model_copy(update={"lockstep": lockstep}))
    session.absorb(observe(1, reward=0.1))
    session.react()
    session.absorb(BALLOT)
    answer, *rest = session.react()
    assert isinstance(answer, Vote) and (answer.stance, answer.ballot) == ("against", "7")
    assert [(message.state, message.seen) for message in rest if isinstance(message, AgentStatus)] == [
        ("done", "7")
    ] * lockstep
    assert session.react() == []


class Wordy(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window: Window) -> Vote:
        return {"optimizer.lr_scale": 2.0}  # type: ignore[return-value]


def test_a_return_value_that_is_not_a_vote_is_an_agents_error() -> None:
    session = Session(Wordy(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    assert not any(isinstance(message, Vote) for message in session.react())
    assert "AttributeError" in session.problems[0]


class Unasked(Eager):
    """It proposes, and has nothing to say to others."""

    def review(self, ballot: BallotOpened, window: Window) -> None:
        return None


def test_an_agent_without_a_vote_confirms_that_it_saw_the_ballot() -> None:
    session = Session(Unasked(), "me")
    elsewhere = BALLOT.model_copy(update={"actuator": "grad.clip"})
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.react()
    session.absorb(elsewhere)
    (done,) = session.react()
    assert isinstance(done, AgentStatus) and (done.state, done.seen) == ("done", "7")


def test_a_vote_in_one_ballot_is_none_in_the_next() -> None:
    session = Session(Unasked(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    assert any(isinstance(message, Vote) for message in session.react())
    session.absorb(BALLOT)
    assert session.react() == [], "its proposal counts there"
    session.absorb(
        Decision(
            id="8",
            ballot="7",
            actuator="optimizer.lr_scale",
            verdict="rejected",
            value=2.0,
            reason="",
            tally=(),
            tick=1,
            apply_at_tick=2,
            expires_at_tick=9,
        )
    )
    session.absorb(BALLOT.model_copy(update={"id": "9"}))
    (done,) = session.react()
    assert isinstance(done, AgentStatus) and (done.state, done.seen) == ("done", "9")


class Counting(Agent):
    """It says what it has seen."""

    moves = ("optimizer.lr_scale",)

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def vote(self, window: Window) -> None:
        self.seen.append((len(window.observations), len(window.receipts)))


def test_another_training_of_the_script_begins_with_an_empty_window() -> None:
    agent = Counting()
    session = Session(agent, "me")
    session.absorb(started())
    for tick in (1, 2, 3):
        session.absorb(observe(tick, reward=0.1))
    session.absorb(receipt(3, "optimizer.lr_scale", 1.0, 4.0))
    session.react()
    resumed = started().model_copy(update={"incarnation": 2, "n": 0})
    session.absorb(resumed)
    session.absorb(observe(4, reward=0.1).model_copy(update={"incarnation": 2}))
    session.react()
    second = resumed.model_copy(update={"incarnation": 3, "training": "2"})
    ahead = observe(5, reward=0.9).model_copy(update={"incarnation": 3, "n": 1})  # subjects may overtake each other
    for body in (ahead, second, observe(6, reward=0.9).model_copy(update={"incarnation": 3, "n": 2})):
        session.absorb(body)
    session.react()
    assert agent.seen == [(3, 1), (4, 1), (2, 0)]


class Bold(Agent):
    """It asks for the same at every tick."""

    moves = ("optimizer.lr_scale",)

    def vote(self, window: Window) -> Vote:
        return window.propose("optimizer.lr_scale", 0.5, confidence=0.9, why=f"it is tick {window.tick}")


def verdict(number: int, tick: int, kind: str, by: str) -> Decision:
    return Decision.model_validate(
        {
            "id": f"{number}", "ballot": f"b{number}", "actuator": "optimizer.lr_scale", "verdict": kind, "value": 0.5,
            "reason": "", "tally": [{"agent": by, "stance": "propose", "value": 0.5}], "tick": tick,
            "apply_at_tick": tick + 1, "expires_at_tick": tick + 1,
        }
    )  # fmt: skip


def after(*decisions: Decision, until: int) -> tuple[list[int], list[str]]:
    """Ticks of its proposals after those decisions of tick 1, and what it told meanwhile."""
    session = Session(Bold(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    for decision in decisions:
        session.absorb(decision)
    proposed, reasons = [], []
    for tick in range(2, until):
        session.absorb(observe(tick, reward=0.1))
        for word in without_graph(session.react()):
            if isinstance(word, Vote):
                proposed.append(tick)
            elif word.state == "notice":
                reasons.append(word.reason)
    return proposed, reasons


def test_what_was_refused_to_itself_is_not_asked_again_for_a_cool_down() -> None:
    proposed, reasons = after(verdict(1, 1, "rejected", "me"), until=8)
    assert proposed == [6, 7] and not reasons, "the refusal stands in the log with its reason"


def test_a_change_cools_down_for_everybody_and_who_is_held_back_says_so_once() -> None:
    proposed, reasons = after(verdict(1, 1, "adopted", "somebody"), until=8)
    assert proposed == [6, 7]
    assert len(reasons) == 1 and reasons[0].startswith("withheld: 0.5 for optimizer.lr_scale, because decision 1 on ")
    assert reasons[0].endswith("has no receipt yet. The proposal's reason: it is tick 2")


def test_duplicates_change_nothing() -> None:
    session = Session(Eager(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.react()
    session.absorb(observe(1, reward=0.1))
    session.absorb(started())
    assert session.react() == []


class Reviewer(Agent):
    """Cannot vote in this run, but reviews."""

    needs = ("no such metric",)
    reads = ("grad_norm",)

    def vote(self, window: Window) -> Vote:
        raise AssertionError("an agent that cannot fire is not asked for a vote")

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return window.answer(ballot, "for", confidence=0.6, why="the gradients are calm")


def test_an_agent_that_cannot_fire_still_reviews() -> None:
    session = Session(Reviewer(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    first = session.react()
    statuses = [message for message in first if isinstance(message, AgentStatus)]
    assert [status.state for status in statuses] == ["joined", "done"] and "only reviews, because" in statuses[0].reason
    session.absorb(BALLOT)
    (review,) = [message for message in session.react() if isinstance(message, Vote)]
    assert (review.stance, review.evidence) == ("for", ("signal:gradients:grad_norm",))
    assert not session.problems


def test_an_agent_that_failed_too_often_does_not_review_before_a_restart() -> None:
    class Faulty(Agent):
        def vote(self, window: Window) -> Vote:
            raise KeyError("typo")

        def review(self, ballot: BallotOpened, window: Window) -> Vote:
            return window.answer(ballot, "for", confidence=0.6, why="calm")

    session = Session(Faulty(), "me")
    session.absorb(started())
    for tick in range(1, MAX_FAILURES + 1):
        session.absorb(observe(tick, reward=0.1))
        session.react()
    session.absorb(BALLOT)
    assert not any(isinstance(message, Vote) for message in session.react())
    session.absorb(started().model_copy(update={"incarnation": 2}))
    session.absorb(observe(MAX_FAILURES + 1, reward=0.1).model_copy(update={"incarnation": 2}))
    statuses = [message for message in session.react() if isinstance(message, AgentStatus)]
    assert [status.state for status in statuses][:2] == ["joined", "failed"], "it fails again, and says so"


def test_a_proposal_on_the_same_ballot_takes_the_place_of_a_review() -> None:
    session = Session(Eager(), "me")
    session.absorb(started())
    session.absorb(BALLOT)
    session.absorb(observe(1, reward=0.1))
    (vote,) = [message for message in session.react() if isinstance(message, Vote)]
    assert vote.stance == "propose"


def test_a_graph_review_is_published_before_the_agent_is_done() -> None:
    session = Session(Graph(), "graph")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.react()
    session.absorb(BALLOT)
    review, done = session.react()
    assert isinstance(review, GraphReview) and review.ballot is BALLOT
    assert isinstance(done, AgentStatus) and done.state == "done"


def test_a_rejected_ballot_that_it_only_reviewed_does_not_silence_an_agent() -> None:
    class Second(Bold):
        def vote(self, window: Window) -> Vote | None:  # type: ignore[override]
            return super().vote(window) if window.tick > 1 else None

        def review(self, ballot: BallotOpened, window: Window) -> Vote:
            return window.answer(ballot, "against", confidence=0.6, why="no")

    session = Session(Second(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.absorb(BALLOT)
    assert [message.stance for message in session.react() if isinstance(message, Vote)] == ["against"]
    session.absorb(verdict(8, 1, "rejected", "other").model_copy(update={"ballot": "7"}))
    session.absorb(observe(2, reward=0.1))
    assert [message.stance for message in session.react() if isinstance(message, Vote)] == ["propose"]


def test_a_review_that_fails_does_not_count_as_a_vote() -> None:
    class Clumsy(Bold):
        def review(self, ballot: BallotOpened, window: Window) -> Vote:
            raise KeyError("typo")

    session = Session(Clumsy(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.absorb(BALLOT.model_copy(update={"actuator": "run.rollback"}))
    assert not any(isinstance(message, Vote) for message in session.react())
    session.absorb(verdict(8, 1, "rejected", "other"))
    session.absorb(observe(2, reward=0.1))
    assert [message.stance for message in session.react() if isinstance(message, Vote)] == ["propose"]
