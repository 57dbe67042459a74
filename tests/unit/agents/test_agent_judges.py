"""The agents that watch judges and spreads, on GRPO runs that something was done to."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support import runs

from oven_agents import Knob, Window
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import Alternatives
from oven_agents.shipped.entropy_collapse import EntropyCollapse
from oven_agents.shipped.learning_rate import LearningRate
from oven_agents.shipped.lr_cooldown import LrCooldown
from oven_agents.shipped.reward_hacking import RewardHacking
from oven_agents.stats.confidence import FIRM_CONFIDENCE
from oven_core.protocol.evidence import Signal, read_signal
from oven_core.protocol.messages import AgentStatus, BallotOpened, Observation, RunStarted, Value, Vote

ONSET, END = 101, 141
Change = Callable[[int, dict[str, float]], dict[str, float]]


def turned(change: Change, end: int = END) -> list[Observation]:
    healthy = runs.sorting()

    def gauges(tick: int, draw: random.Random) -> dict[str, float]:
        metrics = healthy(tick, draw)
        return {**metrics, **change(tick - ONSET, metrics)} if tick >= ONSET else metrics

    return runs.observed(gauges, range(1, end))


def judge(name: str, by: Callable[[int], float]) -> Change:
    key = f"rewards/{name}/mean"
    return lambda since, metrics: {key: min(1.0, max(0.0, metrics[key] + by(since)))}


def test_a_judge_that_jumps_up_alone_loses_its_weight() -> None:
    vote = runs.votes(RewardHacking(), runs.grpo(), turned(judge("critic", lambda since: 0.3)))[0]
    assert vote.actuator == "reward.weights" and vote.target == "eval/accuracy" and vote.tick <= ONSET + 4
    assert isinstance(vote.value, dict) and vote.value["critic"] == pytest.approx(1 / 30, abs=0.001)
    assert sum(vote.value.values()) == pytest.approx(1) and vote.value["exact"] == pytest.approx(
        vote.value["format"], abs=1e-3
    )


def apart(since: int, metrics: dict[str, float]) -> dict[str, float]:
    """The scores of the critic rise while those of exact and held-out quality fall."""
    rising = judge("critic", lambda s: s / 80)(since, metrics)
    return {**metrics, **rising, **judge("exact", lambda s: -s / 60)(since, metrics), "eval/accuracy": 0.5}


def reviewed(observations: list[Observation], knob: str, value: Value) -> Vote | None:
    run = runs.grpo()
    window = Window(run, observations, {spec.name: Knob(spec, spec.value) for spec in run.actuators}, [], {})
    ballot = BallotOpened(
        id="7", actuator=knob, proposal=value, opened_by="other", tick=window.tick, closes_at_tick=window.tick + 3,
        eligible=("other", "reward_hacking"),
    )  # fmt: skip
    return RewardHacking().review(ballot, window)


def test_diverging_judges_speak_against_a_higher_rate() -> None:
    vote = reviewed(turned(apart), "optimizer.lr_scale", 2.0)
    assert vote is not None and vote.stance == "against" and vote.confidence >= FIRM_CONFIDENCE
    signal = read_signal(vote.evidence)
    assert signal is not None and signal.kind == "judges"
    assert not signal.is_independent_of(Signal("held_out", ("eval/accuracy",)))  # it rests on the fall of quality, too


def test_judges_that_do_not_diverge_permit_a_higher_rate_but_are_no_reason_for_new_weights() -> None:
    steady = turned(lambda since, metrics: metrics)
    vote = reviewed(steady, "optimizer.lr_scale", 2.0)
    assert vote is not None and vote.stance == "for" and vote.confidence < FIRM_CONFIDENCE
    signal = read_signal(vote.evidence)
    # The reward is computed from the judges' scores, so the two are one piece of evidence.
    assert signal is not None and not signal.is_independent_of(Signal("rewards", ("reward",)))
    assert reviewed(steady, "reward.weights", {"exact": 0.8, "format": 0.1, "critic": 0.1}) is None


def test_judges_that_were_measured_for_too_few_steps_say_nothing() -> None:
    assert reviewed(turned(apart)[:20], "optimizer.lr_scale", 2.0) is None


def test_slowly_diverging_judges_are_detected_by_the_rising_one() -> None:
    message = runs.agent_messages(RewardHacking(), runs.grpo(), turned(apart))[0]
    assert isinstance(message, Alternatives)
    assert [plan.remedy for plan in message.plans] == ["rollback_and_reweigh", "reweigh_rewards"]
    weights = message.plans[0].votes[-1].value
    assert isinstance(weights, dict) and weights["critic"] < 0.05 and "reward_up_heldout_down" in message.symptoms


def test_a_judge_that_rises_while_lost_quality_returns_keeps_its_weight() -> None:
    healthy = runs.sorting()

    def recovering(tick: int, draw: random.Random) -> dict[str, float]:
        since = max(0, tick - ONSET)
        quality = 0.8 if tick < 20 else min(0.7, 0.1 + since / 40)
        metrics = {**healthy(tick, draw), "eval/accuracy": quality}
        if tick >= 20:
            exact, critic = min(0.7, 0.1 + since / 40), max(0.5, 0.9 - since / 60)
            metrics |= {"rewards/exact/mean": exact, "rewards/critic/mean": critic}
        return metrics

    votes = runs.votes(RewardHacking(), runs.grpo(), runs.observed(recovering, range(1, END)))
    assert not [vote for vote in votes if vote.tick >= ONSET]


def test_a_judge_that_jumps_because_held_out_quality_jumped_keeps_its_weight() -> None:
    def better(since: int, metrics: dict[str, float]) -> dict[str, float]:
        return {**judge("exact", lambda s: 0.3)(since, metrics), "eval/accuracy": 0.99}

    assert runs.votes(RewardHacking(), runs.grpo(), turned(judge("exact", lambda since: 0.3), ONSET + 6))
    assert not runs.votes(RewardHacking(), runs.grpo(), turned(better, ONSET + 6))


@pytest.mark.parametrize("quiet", [True, False])
def test_advantages_below_chance_raise_the_confidence_in_an_entropy_collapse(quiet: bool) -> None:
    def collapsed(since: int, metrics: dict[str, float]) -> dict[str, float]:
        spread = metrics["reward_std"] * (0.2 if quiet and since > 3 else 1)
        return {"entropy": metrics["entropy"] * 0.8**since, "reward_std": spread, "reward": 0.6}

    messages = runs.agent_messages(EntropyCollapse(), runs.grpo(), turned(collapsed))
    offers = [offer for offer in messages if isinstance(offer, Alternatives)]
    assert [plan.remedy for plan in offers[0].plans] == ["rollback_and_cut", "raise_beta", "rollback"]
    surest = max(vote.confidence for offer in offers for vote in offer.plans[0].votes)
    assert (surest >= FIRM_CONFIDENCE) == quiet


def test_gradients_that_agree_while_the_reward_falls_are_no_reason_to_raise_the_rate() -> None:
    def dragged(down: float) -> Change:
        return lambda since, metrics: {
            "optim/grad_momentum_cos": 0.6,
            "learning_rate": metrics["learning_rate"] / 10,
            "reward": max(0.35, metrics["reward"] - down * since),
        }

    assert not runs.votes(LearningRate(), runs.grpo(), turned(dragged(0.03), ONSET + 9))
    assert runs.votes(LearningRate(), runs.grpo(), turned(dragged(0.0), ONSET + 9))


def test_a_rate_that_never_fell_is_reported_once_and_left_to_operators() -> None:
    """A proposal that can never have a second voice would stand in every log for nothing."""

    def notices(gauges: runs.Gauges) -> list[str]:
        session = Session(LrCooldown(), "me")
        session.absorb(runs.pretraining())
        words = []
        for observation in runs.observed(gauges, range(700, 900)):
            session.absorb(observation)
            words += session.react()
        assert not any(isinstance(word, Vote) for word in words)
        return [word.reason for word in words if isinstance(word, AgentStatus) and word.state == "notice"]

    (notice,) = notices(runs.language())
    assert "20% of the run is left" in notice and "oven-controller set optimizer.lr_scale 0.3" in notice
    assert not notices(runs.language(rate=lambda t: 3e-3 * (1 - t / 1000)))
    assert LrCooldown().cannot_fire(RunStarted(incarnation=1, n=0, recipe="x")) is not None
