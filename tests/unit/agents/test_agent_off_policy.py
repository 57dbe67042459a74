"""Tokens that a policy would never have sampled are told from a policy that drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.support import runs
from tests.unit.agents.test_agent_relapse import EVERY, LEARNT, Events, offers, read

from oven_agents.sdk.window import Window
from oven_agents.stats.policy_shift import is_off_policy
from oven_core.protocol.messages import Observation

TOKENS, VOCABULARY, ONSET = 200, 16, 60


def k3(policy: np.ndarray, reference: np.ndarray, sampled: np.ndarray) -> float:
    log_ratio = np.log(reference[sampled]) - np.log(policy[sampled])
    return float(np.mean(np.exp(log_ratio) - log_ratio - 1))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def window(kls: Sequence[float]) -> Window:
    return Window(runs.grpo(), [runs.seen(tick, {"kl": kl}) for tick, kl in enumerate(kls, 1)], {}, (), {})


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("far", [1.0, 4.0, 12.0])
def test_on_policy_tokens_are_never_flagged_as_off_policy(seed: int, far: float) -> None:
    draw = np.random.default_rng(seed)
    start = draw.normal(size=VOCABULARY)
    away = far * draw.normal(size=VOCABULARY)
    kls = []
    for tick in range(100):
        policy = softmax(start + away * tick / 100)
        kls.append(k3(policy, softmax(start), draw.choice(VOCABULARY, TOKENS, p=policy)))
    assert not any(is_off_policy(window(kls[:end])) for end in range(1, 101))


@pytest.mark.parametrize("seed", range(5))
def test_off_policy_tokens_are_detected_within_a_few_steps(seed: int) -> None:
    draw = np.random.default_rng(seed)
    reference = softmax(draw.normal(size=VOCABULARY))
    sure = softmax(np.where(np.arange(VOCABULARY) == 0, 14.0, 0.0))
    kls = []
    for tick in range(ONSET + 10):
        sampler = sure if tick < ONSET else reference
        kls.append(k3(sure, reference, draw.choice(VOCABULARY, TOKENS, p=sampler)))
    assert not is_off_policy(window(kls[:ONSET]))
    assert is_off_policy(window(kls))


def with_kl(events: Events, kl: Callable[[int], float]) -> Events:
    return [
        event.model_copy(update={"metrics": {**event.metrics, "kl": kl(event.tick)}})
        if isinstance(event, Observation)
        else event
        for event in events
    ]


def test_a_fall_while_off_policy_is_not_rolled_back() -> None:
    fell = read([*LEARNT, 0.3])
    last = EVERY * len(LEARNT)
    assert offers(with_kl(fell, lambda tick: 0.3))
    assert not offers(with_kl(fell, lambda tick: 0.3 if tick <= last else 1e4))
    assert offers(with_kl(fell, lambda tick: 1e4 if tick == 10 else 0.3)), "the best reading is younger"
