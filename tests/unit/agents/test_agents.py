"""The shipped agents on made-up gauges whose right answer is plain, and the session around them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest

from oven_agents import Agent, Window
from oven_agents.sdk.alternative_plans import spoken
from oven_agents.sdk.session import PATIENCE, Session
from oven_agents.shipped.curriculum import Curriculum
from oven_agents.shipped.learning_rate import ALIGNMENT, LearningRate
from oven_agents.stats.confidence import STANDS_ALONE
from oven_agents.stats.robust_statistics import best_level, noise, quantile, total_variation
from oven_controller.protocol.known_actuators import ACTUATORS
from oven_controller.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    MetricSpec,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
    Vote,
)

LEVELS = ("len3", "len4", "len5")


def started(mixture: dict[str, float] | None = None, *, missing: str = "") -> RunStarted:
    names = ("reward", "loss", "grad_norm", "learning_rate", "frac_reward_zero_std", ALIGNMENT)
    metrics = tuple(MetricSpec(name=name) for name in (*names, *(f"reward/{n}" for n in LEVELS)) if name != missing)
    return RunStarted(
        incarnation=1,
        n=0,
        recipe="grpo",
        metrics=metrics,
        actuators=(
            ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.01, high=100, value=1.0),
            ACTUATORS["run.rollback"],
            ActuatorSpec(
                name="data.mixture",
                kind="simplex",
                choices=LEVELS,
                value=mixture or dict.fromkeys(LEVELS, 1 / 3),
                moves_own_metric=True,
            ),
        ),
    )


def observe(tick: int, **metrics: float) -> Observation:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    if "cos" in named:
        named[ALIGNMENT] = named.pop("cos")
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics=named)


def votes(agent: Agent, observations: Iterable[Observation], run: RunStarted | None = None) -> list[Vote]:
    session = Session(agent, "me")
    session.absorb(run or started())
    said = []
    for observation in observations:
        session.absorb(observation)
        said += [message for message in spoken(session.react()) if isinstance(message, Vote)]
        assert not session.problems, session.problems
    return said


def receipt(tick: int, actuator: str, before: Value, after: Value) -> Receipt:
    return Receipt(
        incarnation=1,
        n=10_000 + tick,
        decision_id="d",
        actuator=actuator,
        status="applied",
        before=before,
        after=after,
        tick=tick,
        step=tick,
    )


def noisy(mean: float, count: int, spread: float, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, spread) for _ in range(count)]


def test_aligned_gradients_raise_the_rate_and_say_why() -> None:
    said = votes(LearningRate(), [observe(t, reward=0.3, cos=0.55) for t in range(1, 10)])
    assert said[0].actuator == "optimizer.lr_scale" and said[0].value == 4.0
    assert "0.55" in said[0].rationale and said[0].confidence >= STANDS_ALONE
    assert said[0].evidence == ("symptom:gradients_aligned",)


@pytest.mark.parametrize("seed", range(5))
def test_unrelated_gradients_leave_it_alone(seed: int) -> None:
    cosines = noisy(0.0, 400, 0.18, seed)
    assert not votes(LearningRate(), [observe(t, reward=0.7, cos=c) for t, c in enumerate(cosines, 1)])


def test_opposed_gradients_lower_it_but_not_at_the_ceiling() -> None:
    cosines = noisy(-0.15, 40, 0.12)
    free = [observe(t, reward=0.6, cos=c, frac_reward_zero_std=0.3) for t, c in enumerate(cosines, 1)]
    assert votes(LearningRate(), free)[0].value == pytest.approx(0.4)
    solved = [observe(t, reward=0.97, cos=c, frac_reward_zero_std=0.8) for t, c in enumerate(cosines, 1)]
    assert not votes(LearningRate(), solved)


def test_how_far_they_have_to_oppose_each_other_under_a_reward() -> None:
    """In a drawn start at 8.7 times the fitting rate the later half had −.07: a limit of −.08 left it alone."""
    for mean, cut in ((-0.065, True), (-0.04, False)):
        turns = [mean + (0.05 if t % 2 else -0.05) for t in range(60)]
        said = votes(LearningRate(), [observe(t, reward=0.5, cos=c) for t, c in enumerate(turns, 1)])
        assert bool(said) is cut, mean


@pytest.mark.parametrize("rates", [[t / 30 for t in range(1, 31)], [math.exp(-t / 15) for t in range(30)]])
def test_the_users_own_schedule_is_not_fought(rates: Sequence[float]) -> None:
    moving = [observe(t, reward=0.3, cos=0.6, learning_rate=rate) for t, rate in enumerate(rates, 1)]
    assert not votes(LearningRate(), moving)


def test_a_collapse_proposes_a_rollback_and_a_cut_together() -> None:
    rewards = [0.30, 0.16, 0.05, 0.10, 0.03]
    said = votes(LearningRate(), [observe(t, reward=r, cos=-0.2) for t, r in enumerate(rewards, 1)])
    assert {(vote.actuator, vote.value) for vote in said} == {("optimizer.lr_scale", 0.125), ("run.rollback", 0.0)}


def test_a_late_collapse_goes_back_to_before_it_and_not_to_the_start() -> None:
    rewards = [*noisy(0.8, 100, 0.03), 0.2, 0.05, 0.02]
    said = votes(LearningRate(), [observe(t, reward=r, cos=0.0) for t, r in enumerate(rewards, 1)])
    back = next(vote for vote in said if vote.actuator == "run.rollback")
    assert isinstance(back.value, float) and 85 <= back.value <= 96


def test_a_collapse_while_the_rate_cools_down_waits_for_the_cut() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started())
    session.absorb(receipt(1, "optimizer.lr_scale", 1.0, 4.0).model_copy(update={"n": 1}))
    said = []
    for tick, reward in enumerate([0.5, 0.5, 0.1, 0.02, 0.01, 0.01, 0.01], 2):
        session.absorb(observe(tick, reward=reward, cos=-0.2))
        said.append([message.actuator for message in spoken(session.react()) if isinstance(message, Vote)])
    assert said[:5] == [[]] * 5 and said[6] == ["optimizer.lr_scale", "run.rollback"]


def test_a_rate_that_collapsed_is_not_tried_again() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started())
    session.absorb(receipt(6, "optimizer.lr_scale", 1.0, 0.2))
    session.absorb(receipt(6, "run.rollback", 6.0, 0.0).model_copy(update={"n": 20_000}))
    said: list[Vote] = []
    for tick in range(20_001, 20_030):
        session.absorb(observe(tick, reward=0.3, cos=0.6))
        said += [message for message in spoken(session.react()) if isinstance(message, Vote)]
    assert said and said[0].value == pytest.approx(0.25)


def test_no_cut_is_undone_before_it_has_shown_what_it_does() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started())
    session.absorb(receipt(6, "optimizer.lr_scale", 1.0, 0.2))
    said: list[Vote] = []
    for tick in range(7, 40):
        session.absorb(observe(tick, reward=0.3, cos=0.6))
        said += [message for message in spoken(session.react()) if isinstance(message, Vote)]
    assert said and said[0].tick == 6 + LearningRate.REPAIR


def test_a_starved_level_brings_the_mixture_back() -> None:
    only_easy = {"len3": 1.0, "len4": 0.0, "len5": 0.0}
    said = votes(Curriculum(), [observe(t, reward=0.6, reward__len3=0.6) for t in range(1, 10)], started(only_easy))
    value = said[0].value
    assert isinstance(value, dict) and min(value.values()) > 0.2 and sum(value.values()) == pytest.approx(1)
    assert "unseen" in said[0].rationale


def test_a_level_waits_for_the_one_before_it() -> None:
    only_easy = {"len3": 0.98, "len4": 0.02, "len5": 0.0}
    failed = [observe(t, reward=0.1, reward__len3=0.1, reward__len4=0.0) for t in range(1, 10)]
    value = votes(Curriculum(), failed, started(only_easy))[0].value
    assert isinstance(value, dict) and value["len5"] == pytest.approx(0.1, abs=0.01), "len4 is still failed"
    solved = [observe(t, reward=0.6, reward__len3=0.6, reward__len4=0.4) for t in range(1, 10)]
    value = votes(Curriculum(), solved, started(only_easy))[0].value
    assert isinstance(value, dict) and value["len5"] > 0.3


def test_a_rollback_makes_the_curriculum_look_anew() -> None:
    session = Session(Curriculum(), "me")
    session.absorb(started({"len3": 0.9, "len4": 0.1, "len5": 0.0}))
    said: list[tuple[int, Vote]] = []
    for tick in range(1, 13):
        if tick == 5:
            session.absorb(receipt(4, "run.rollback", 4.0, 0.0).model_copy(update={"n": 9}))
        collapsed = tick < 5
        reward = 0.02 if collapsed else 0.5
        session.absorb(observe(tick, reward=reward, reward__len3=reward).model_copy(update={"n": 2 * tick}))
        said += [(tick, message) for message in spoken(session.react()) if isinstance(message, Vote)]
    first, vote = said[0]
    assert first == 9, "five ticks after the rollback, not five after the start"
    assert isinstance(vote.value, dict) and vote.value["len3"] == pytest.approx(1 / 3, abs=0.01)


def test_an_even_mixture_is_left_alone_and_so_are_mastered_levels() -> None:
    even = [observe(t, reward=0.7, reward__len3=0.9, reward__len4=0.7, reward__len5=0.4) for t in range(1, 60)]
    assert not votes(Curriculum(), even)
    skewed = {"len3": 0.02, "len4": 0.49, "len5": 0.49}
    mastered = [observe(t, reward=0.7, reward__len3=0.99, reward__len4=0.7, reward__len5=0.4) for t in range(1, 60)]
    assert not votes(Curriculum(), mastered, started(skewed))


def test_an_agent_says_why_it_cannot_fire() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started().model_copy(update={"metrics": (MetricSpec(name="grad_norm"),)}))
    statuses = [message for message in session.react() if isinstance(message, AgentStatus)]
    assert statuses[-1].state == "cannot_fire" and "reward" in statuses[-1].reason


def test_without_the_gauge_of_alignment_a_collapse_is_still_seen() -> None:
    fell = [observe(t, reward=0.6 if t < 30 else 0.0, loss=1.0) for t in range(1, 40)]
    run = started(missing=ALIGNMENT)
    assert [vote.actuator for vote in votes(LearningRate(), fell, run)][:2] == ["optimizer.lr_scale", "run.rollback"]
    assert not votes(LearningRate(), fell[:29], run)


@pytest.mark.parametrize("error", [KeyError("typo"), SystemExit(0)], ids=["raises", "exits"])
def test_an_agent_that_always_raises_says_so_once_and_goes_quiet(error: BaseException) -> None:
    """One that calls sys.exit() would end the process, with the agents beside it, and as if all were well."""

    class Faulty(Agent):
        def vote(self, window: Window) -> Vote:
            raise error

    session = Session(Faulty(), "me")
    session.absorb(started())
    said: list[object] = []
    for tick in range(1, PATIENCE + 20):
        session.absorb(observe(tick, reward=0.1))
        said += session.react()
    reasons = [m.reason for m in said if isinstance(m, AgentStatus) and m.state == "cannot_fire"]
    assert len(reasons) == 1 and type(error).__name__ in reasons[0]
    assert len(session.problems) == PATIENCE


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


def test_in_lockstep_the_last_word_can_be_said_again() -> None:
    session = Session(Eager(), "me")
    session.absorb(started().model_copy(update={"lockstep": True}))
    awaited = [session.awaited]
    session.absorb(observe(1, reward=0.1))
    session.react()
    awaited.append(session.awaited)
    session.absorb(RunEnded(incarnation=1, n=2, reason="completed", tick=1, step=1))
    awaited.append(session.awaited)
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
    session = Session(Eager(), "me")
    session.absorb(started().model_copy(update={"lockstep": lockstep}))
    session.absorb(observe(1, reward=0.1))
    session.react()
    session.absorb(BALLOT)
    answer, *rest = session.react()
    assert isinstance(answer, Vote) and (answer.stance, answer.ballot) == ("against", "7")
    assert [(said.state, said.seen) for said in rest if isinstance(said, AgentStatus)] == [("done", "7")] * lockstep
    assert session.react() == []


class Wordy(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window: Window) -> Vote:
        return {"optimizer.lr_scale": 2.0}  # type: ignore[return-value]


def test_what_is_no_vote_is_the_agents_own_fault() -> None:
    session = Session(Wordy(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    assert not any(isinstance(said, Vote) for said in session.react())
    assert "AttributeError" in session.problems[0]


class Unasked(Eager):
    """It proposes, and has nothing to say to others."""

    def review(self, ballot: BallotOpened, window: Window) -> None:
        return None


def test_who_says_nothing_on_a_ballot_says_that_it_has_seen_it() -> None:
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
    assert any(isinstance(said, Vote) for said in session.react())
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


def test_duplicates_change_nothing() -> None:
    session = Session(Eager(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.react()
    session.absorb(observe(1, reward=0.1))
    session.absorb(started())
    assert session.react() == []


def test_robust_statistics() -> None:
    assert quantile([1, 2, 3, 4, 5], 0.25) == 2
    assert best_level([0.1, 0.9, 0.1, 0.2, 0.3]) == 0.2, "one lucky step is no level"
    assert total_variation({"a": 1.0, "b": 0.0}, {"a": 0.25, "b": 0.75}) == 0.75
    values = [t * 0.01 + e for t, e in enumerate(noisy(0, 2000, 0.5))]
    assert noise(values) == pytest.approx(0.5, rel=0.1)


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
    speciality = ("optimizer.lr_scale",)

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
    proposed, told = [], []
    for tick in range(2, until):
        session.absorb(observe(tick, reward=0.1))
        for word in spoken(session.react()):
            if isinstance(word, Vote):
                proposed.append(tick)
            elif word.state == "notice":
                told.append(word.reason)
    return proposed, told


def test_what_was_refused_to_somebody_else_holds_nothing_back() -> None:
    proposed, told = after(verdict(1, 1, "rejected", "somebody"), until=4)
    assert proposed == [2, 3] and not told


def test_what_was_refused_to_itself_is_not_asked_again_for_a_cool_down() -> None:
    proposed, told = after(verdict(1, 1, "rejected", "me"), until=8)
    assert proposed == [6, 7] and not told, "the refusal stands in the log with its reason"


def test_a_change_cools_down_for_everybody_and_who_is_held_back_says_so_once() -> None:
    proposed, told = after(verdict(1, 1, "adopted", "somebody"), until=8)
    assert proposed == [6, 7]
    assert len(told) == 1 and told[0].startswith("held back: 0.5 for optimizer.lr_scale, because it is tick 2; ")
    assert told[0].endswith("decision 1 on optimizer.lr_scale has no receipt yet")


def test_a_change_on_trial_is_in_flight_until_its_receipt() -> None:
    """As one that is adopted: nothing is proposed on it, and the cool-down has begun."""
    assert after(verdict(1, 1, "tried", "somebody"), until=8) == after(verdict(1, 1, "adopted", "somebody"), until=8)
    session = Session(Bold(), "me")
    session.absorb(started())
    session.absorb(observe(1, reward=0.1))
    session.absorb(verdict(1, 1, "tried", "somebody"))
    assert session.in_flight == ["optimizer.lr_scale"]
    session.absorb(
        Receipt(
            incarnation=1,
            n=2,
            decision_id=verdict(1, 1, "tried", "somebody").id,
            actuator="optimizer.lr_scale",
            status="skipped",
            tick=1,
            step=1,
            reason="the trial kept the control",
        )
    )
    assert session.in_flight == [] and session.knobs["optimizer.lr_scale"].value == 1.0


def test_under_a_reward_gradients_that_lean_are_a_reason_while_they_go_on_leaning() -> None:
    """At a rate that fits they lean, too, for as long as the policy has most of its way before it."""

    def said(fading: float) -> list[Vote]:
        cosines = (0.3 - fading * t + c for t, c in enumerate(noisy(0.0, 80, 0.02)))
        return votes(LearningRate(), [observe(t, reward=0.3, cos=c) for t, c in enumerate(cosines, 1)])

    assert said(0.0)[0].value == 2.5
    assert not said(0.002), "0.3 to 0.14"
