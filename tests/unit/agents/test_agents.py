"""The shipped agents on made-up gauges whose right answer is plain."""

from __future__ import annotations

import pytest
from tests.support.gauges import noisy, observe, receipt, started, votes

from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import without_graph
from oven_agents.sdk.window import Window
from oven_agents.shipped.curriculum import Curriculum
from oven_agents.shipped.learning_rate import LearningRate
from oven_agents.stats.confidence import FIRM_CONFIDENCE
from oven_agents.stats.lost_progress import DECLINE_TICKS, last_healthy_tick
from oven_core.protocol.messages import AgentStatus, Horizon, MetricSpec, Vote


def test_aligned_gradients_raise_the_rate_and_say_why() -> None:
    proposals = votes(LearningRate(), [observe(t, reward=0.3, cos=0.55) for t in range(1, 10)])
    assert proposals[0].actuator == "optimizer.lr_scale" and proposals[0].value == 4.0
    assert "0.55" in proposals[0].rationale and proposals[0].confidence >= FIRM_CONFIDENCE
    assert proposals[0].evidence == ("symptom:gradients_aligned", "signal:gradients:optim/grad_momentum_cos")


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


def test_a_collapse_proposes_a_rollback_and_a_cut_together() -> None:
    rewards = [0.30, 0.16, 0.05, 0.10, 0.03]
    proposals = votes(LearningRate(), [observe(t, reward=r, cos=-0.2) for t, r in enumerate(rewards, 1)])
    assert {(vote.actuator, vote.value) for vote in proposals} == {("optimizer.lr_scale", 0.125), ("run.rollback", 0.0)}


@pytest.mark.parametrize(("level", "lost"), [(0.5, 0.1), (-0.5, -2.0)])
def test_the_last_healthy_tick_is_found_for_rewards_of_either_sign(level: float, lost: float) -> None:
    seen = [observe(tick, reward=level if tick <= 20 else lost) for tick in range(1, 31)]
    assert last_healthy_tick(Window(started(), seen, {}, (), {}), since=0) == 20 - DECLINE_TICKS


def test_a_collapse_while_the_rate_cools_down_waits_for_the_cut() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started())
    session.absorb(receipt(1, "optimizer.lr_scale", 1.0, 4.0).model_copy(update={"n": 1}))
    moves = []
    for tick, reward in enumerate([0.5, 0.5, 0.1, 0.02, 0.01, 0.01, 0.01], 2):
        session.absorb(observe(tick, reward=reward, cos=-0.2))
        moves.append([message.actuator for message in without_graph(session.react()) if isinstance(message, Vote)])
    assert moves[:5] == [[]] * 5 and moves[6] == ["optimizer.lr_scale", "run.rollback"]


def test_no_cut_is_undone_before_it_has_shown_what_it_does() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started())
    session.absorb(receipt(6, "optimizer.lr_scale", 1.0, 0.2))
    proposals: list[Vote] = []
    for tick in range(7, 40):
        session.absorb(observe(tick, reward=0.3, cos=0.6))
        proposals += [message for message in without_graph(session.react()) if isinstance(message, Vote)]
    assert proposals and proposals[0].tick == 6 + LearningRate.REPAIR_TICKS


def test_a_starved_level_brings_the_mixture_back() -> None:
    only_easy = {"len3": 1.0, "len4": 0.0, "len5": 0.0}
    proposals = votes(
        Curriculum(), [observe(t, reward=0.6, reward__len3=0.6) for t in range(1, 10)], started(only_easy)
    )
    value = proposals[0].value
    assert isinstance(value, dict) and min(value.values()) > 0.2 and sum(value.values()) == pytest.approx(1)
    assert "unseen" in proposals[0].rationale


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
    proposals: list[tuple[int, Vote]] = []
    for tick in range(1, 13):
        if tick == 5:
            session.absorb(receipt(4, "run.rollback", 4.0, 0.0).model_copy(update={"n": 9}))
        collapsed = tick < 5
        reward = 0.02 if collapsed else 0.5
        session.absorb(observe(tick, reward=reward, reward__len3=reward).model_copy(update={"n": 2 * tick}))
        proposals += [(tick, message) for message in without_graph(session.react()) if isinstance(message, Vote)]
    first, vote = proposals[0]
    assert first == 9, "five ticks after the rollback, not five after the start"
    assert isinstance(vote.value, dict) and vote.value["len3"] == pytest.approx(1 / 3, abs=0.01)


def test_an_agent_says_why_it_cannot_fire() -> None:
    session = Session(LearningRate(), "me")
    session.absorb(started().model_copy(update={"metrics": (MetricSpec(name="grad_norm"),)}))
    statuses = [message for message in session.react() if isinstance(message, AgentStatus)]
    assert statuses[-1].state == "cannot_fire" and "reward" in statuses[-1].reason


def test_under_a_reward_only_lasting_gradient_agreement_raises_the_rate() -> None:
    """At a rate that fits they lean, too, for as long as the policy has most of its way before it."""

    def proposals(fading: float) -> list[Vote]:
        cosines = (0.3 - fading * t + c for t, c in enumerate(noisy(0.0, 80, 0.02)))
        return votes(LearningRate(), [observe(t, reward=0.3, cos=c) for t, c in enumerate(cosines, 1)])

    assert proposals(0.0)[0].value == 2.5
    assert not proposals(0.002), "0.3 to 0.14"


def test_slight_gradient_agreement_is_ignored_while_the_reward_rises_clearly() -> None:
    def proposals(gain_per_tick: float) -> list[Vote]:
        observations = [
            observe(tick, reward=0.2 + gain_per_tick * tick, reward_std=0.17, cos=cosine).model_copy(
                update={"progress": tick / 120}
            )
            for tick, cosine in enumerate(noisy(0.27, 80, 0.02), 1)
        ]
        return votes(LearningRate(), observations, started().model_copy(update={"horizon": Horizon(max_steps=120)}))

    assert proposals(0.001)[0].value == 2.5, "0.12 in the whole run"
    assert not proposals(0.006), "0.72 in the whole run, four standard deviations within a group"
