"""Every term of the loss: its gradient where it is on, none where it is off."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oven_bench.gym.fault import Fault, Rewards, Step
from oven_bench.gym.tasks.grpo.trainee import CLIP_HIGH, CLIP_LOW, Grpo, advantages, kl, policy_loss

rewards = st.lists(st.floats(-10, 10), min_size=4, max_size=4)


@given(st.lists(rewards, min_size=1, max_size=4))
def test_advantages_are_relative_to_the_group(groups: list[list[float]]) -> None:
    result = advantages(torch.tensor(groups, dtype=torch.float64))
    assert torch.allclose(result.mean(1), torch.zeros(len(groups), dtype=torch.float64), atol=1e-6)
    shifted = advantages(torch.tensor(groups, dtype=torch.float64) + 3)
    assert torch.allclose(result, shifted, atol=1e-6)


def test_a_group_without_differences_has_no_advantage() -> None:
    assert torch.equal(advantages(torch.full((1, 8), 0.5)), torch.zeros(1, 8))


def test_the_policy_term_is_reinforce_where_the_policy_sampled() -> None:
    log_probs = torch.log(torch.tensor([0.2, 0.5, 0.9])).requires_grad_()
    credit = torch.tensor([1.0, -2.0, 0.0])
    policy_loss(log_probs, log_probs.detach(), credit).backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1 / 3, 2 / 3, 0])


@pytest.mark.parametrize(("ratio", "credit"), [(1 + CLIP_HIGH + 0.1, 1.0), (1 - CLIP_LOW - 0.1, -1.0)])
def test_a_ratio_that_went_far_enough_is_pushed_no_further(ratio: float, credit: float) -> None:
    sampled = torch.tensor([-1.0])
    for sign, moves in ((1.0, False), (-1.0, True)):  # back towards 1 it may go
        log_probs = (sampled + math.log(ratio)).requires_grad_()
        policy_loss(log_probs, sampled, torch.tensor([sign * credit])).backward()  # type: ignore[no-untyped-call]
        assert log_probs.grad is not None
        assert bool(log_probs.grad.abs() > 0) is moves


@given(st.lists(st.floats(-8, 0), min_size=1, max_size=8), st.lists(st.floats(-8, 0), min_size=8, max_size=8))
def test_the_kl_term_is_never_negative_and_pulls_to_the_reference(own: list[float], theirs: list[float]) -> None:
    log_probs = torch.tensor(own, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(theirs[: len(own)], dtype=torch.float64)
    result = kl(log_probs, reference)
    assert float(result.detach()) >= 0
    result.backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    assert torch.all(log_probs.grad * (log_probs.detach() - reference) >= 0)


class Terms(Fault):
    """Keeps the gradient of each step."""

    onset = 0

    def __init__(self, *, judged: bool) -> None:
        self.judged = judged
        self.gradient = torch.zeros(0)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return rewards if self.judged else {name: torch.ones_like(scores) for name, scores in rewards.items()}

    def gradients(self, step: Step) -> None:
        self.gradient = torch.cat([p.grad.flatten() for p in step.model.parameters() if p.grad is not None])


@pytest.mark.parametrize(("judged", "beta"), [(False, 0.0), (True, 0.0), (False, 0.5), (True, 0.5)])
def test_each_term_has_a_gradient_where_it_is_on_and_none_where_it_is_off(judged: bool, beta: float) -> None:
    trainee = Grpo(101)
    trainee.train_step()  # away from the reference, where the KL term has no gradient
    trainee.actuators.apply("grpo.beta", beta)
    case = Terms(judged=judged)
    trainee.train_step(case)
    assert bool(case.gradient.abs().sum() > 0) is (judged or beta > 0)
