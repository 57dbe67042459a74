"""Metrics of a simulated run of an oracle that states confidences, with one fault from a tick on, or none.

Confidences and merits are drawn answer by answer from a policy that changes slowly, and measured as the reward measures
them (oven_learner.rewards.calibration_error, the newest 1,000 answers): what their noise and its correlation in time
come from is what they come from in a run. KL and length have the noise measured of small GRPO runs of 160 and 300 steps
(docs/benchmarks.md): 47 % of a KL and 0.6 % of a length, lag-one correlation −0.16 and 0.05, so none; the simulated
ones have between a quarter of that and about as much, lengths up to eight times, since real answers vary more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from oven_learner.rewards.calibrated import NEWEST
from oven_learner.rewards.calibration_error import Floats, Null, binned, null

Fault = Literal["confidence", "advantages", "length", "kl", "calibration"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
TICKS: Final = 260
"""Of a healthy run; one with a fault ends AFTER the fault does."""
LASTS: Final = 50
"""Ticks that a fault lasts before the policy is as it was, as after a rollback that the metrics go through."""
ONSETS: Final = (125, 185)
"""So that no run is shorter than 200 ticks."""
AFTER: Final = 25
"""Ticks after a fault's end at which its run ends, too: half as many again as the slowest gauge needs to be well."""
GROUPS: Final = 8
"""Prompts of a step."""
EACH: Final = 8
"""Answers of a prompt."""
NULL_EVERY: Final = 6
"""Ticks for which a null is used again: confidences of 1,000 answers hardly change in six steps."""
NULL_DRAWS: Final = 200
"""Of each null; a run draws 1,000 at every step, which would take most of the time here."""
LAMBDA: Final = 0.5


@dataclass(frozen=True, slots=True)
class Policy:
    """A run's own constants."""

    spread: float
    """Standard deviation of what a prompt's answers are worth, which a calibrated policy's confidences follow."""
    narrows: float
    """Factor of that spread by the end of training."""
    quality: tuple[float, float]
    """Mean merit at the start and at the end."""
    kl: float
    kl_rise: float
    """Ticks in which the KL rises to where it stays."""
    kl_noise: float
    length: float
    length_noise: float
    length_trend: float
    """Relative change of the length by the end."""
    bias: float
    """How far confidences are off in a healthy run, and wander."""
    strength: float
    """Of the fault, 0 to 1 within its range."""
    onset: int
    ramp: int
    """Ticks in which a fault grows to its strength."""


def draw(rng: np.random.Generator) -> Policy:
    start = rng.uniform(0.4, 0.6)
    return Policy(
        spread=rng.uniform(0.17, 0.28),
        narrows=rng.uniform(0.75, 1.0),
        quality=(start, start + rng.uniform(0.0, 0.25)),
        kl=math.exp(rng.uniform(math.log(0.05), math.log(0.4))),
        kl_rise=rng.uniform(3, 60),
        kl_noise=rng.uniform(0.1, 0.45),
        length=rng.uniform(5, 60),
        length_noise=rng.uniform(0.005, 0.05),
        length_trend=rng.uniform(-0.25, 0.25),
        bias=rng.uniform(0.0, 0.03),
        strength=rng.uniform(0, 1),
        onset=int(rng.integers(*ONSETS)),
        ramp=int(rng.integers(2, 11)),
    )


def observed(seed: int, fault: Fault | None) -> Iterator[dict[str, float]]:
    """The metrics of one tick after another."""
    rng = np.random.default_rng((seed, 0 if fault is None else 1 + FAULTS.index(fault)))
    policy = draw(rng)
    newest: deque[Floats] = deque(maxlen=max(1, NEWEST // (GROUPS * EACH)))
    by_chance: Null | None = None
    drift = 0.0
    for tick in range(TICKS if fault is None else policy.onset + LASTS + AFTER):
        grown = _grown(policy, tick) if fault is not None else 0.0
        drift = 0.95 * drift + rng.normal(0, policy.bias * math.sqrt(1 - 0.95**2))
        confidences, merits = _answers(rng, policy, tick, drift, fault, grown)
        newest.append(np.stack([confidences.ravel(), merits.ravel()]))
        stated, worth = np.concatenate(list(newest), axis=1)
        if by_chance is None or tick % NULL_EVERY == 0:
            by_chance = null(stated, draws=NULL_DRAWS)
        rewards = merits - LAMBDA * (confidences - merits) ** 2
        yield {
            "reward": float(rewards.mean()),
            "confidence/mean": float(confidences.mean()),
            "confidence/std": float(confidences.std()),
            "informativeness/mean": float(merits.mean()),
            "advantage/std": float((rewards - rewards.mean(axis=1, keepdims=True)).std()),
            "calibration/ece": binned(stated, worth).expected_error,
            "calibration/ece_null": by_chance.mean,
            "calibration/ece_null_99": by_chance.high,
            "kl": _kl(rng, policy, tick, grown if fault == "kl" else 0.0),
            "completions/mean_length": _length(rng, policy, tick, grown if fault == "length" else 0.0),
        }


def _grown(policy: Policy, tick: int) -> float:
    """How much of the fault is there, 0 to 1; for a KL the ticks since it began, over LASTS."""
    since = tick - policy.onset
    return min(1.0, (since + 1) / policy.ramp) if 0 <= since < LASTS else 0.0


def _answers(
    rng: np.random.Generator, policy: Policy, tick: int, drift: float, fault: Fault | None, grown: float
) -> tuple[Floats, Floats]:
    """Confidences and merits, (GROUPS, EACH) each. Merits are wrong (0), right (½) or right and saying what (1), with
    the mean that the policy expects of them and says."""
    done = tick / TICKS
    mean = policy.quality[0] + (policy.quality[1] - policy.quality[0]) * done
    spread = policy.spread * (1 - (1 - policy.narrows) * done)
    ab = mean * (1 - mean) / spread**2 - 1
    expected = rng.beta(mean * ab, (1 - mean) * ab, size=(GROUPS, EACH))
    merits = rng.binomial(2, expected) / 2
    if fault == "advantages":  # answers of a group become the same answer
        alike = rng.random((GROUPS, 1)) < grown
        merits = np.where(alike, merits[:, :1], merits)
        expected = np.where(alike, expected[:, :1], expected)
    confidences = expected + drift
    if fault == "confidence":
        left = 1 - grown * (0.75 + 0.23 * policy.strength)
        confidences = mean + left * (confidences - mean)
    elif fault == "calibration":
        confidences = confidences + grown * (0.4 + 0.5 * policy.strength) * (1 - confidences)
    return np.round(np.clip(confidences, 0.0, 1.0), 2).astype(np.float64), merits


def _kl(rng: np.random.Generator, policy: Policy, tick: int, grown: float) -> float:
    level = policy.kl * (1 - math.exp(-(tick + 1) / policy.kl_rise)) * (1 + 0.3 * tick / TICKS)
    if grown:
        level *= math.exp(min(5.0, (0.2 + 0.2 * policy.strength) * (tick - policy.onset + 1)))
    return float(level * math.exp(rng.normal(0, policy.kl_noise) - policy.kl_noise**2 / 2))


def _length(rng: np.random.Generator, policy: Policy, tick: int, grown: float) -> float:
    level = policy.length * (1 + policy.length_trend * tick / TICKS) * (1 - grown * (0.5 + 0.3 * policy.strength))
    return float(level * (1 + rng.normal(0, policy.length_noise)))
