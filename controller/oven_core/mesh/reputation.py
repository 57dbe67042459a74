"""Agents' reputations, and how the outcome of a decision changes them for the agents that voted on it.

1. **Success** y in 0..1, for each voter. The gain has to reach half of the change that the voter forecast, or two
   standard errors if that is more. Success is linear around that point: 0 at two standard errors below it, 1 at two
   above.
2. **Merit** in −1..1, half for the side that the voter took, and half for the probability that it claimed. The second
   half is the quadratic score (Brier 1950, "Verification of forecasts expressed in terms of probability"), scaled so
   that even odds earn 0:

       merit = clip(½ · s · (2y − 1) + ½ · (1 − 4 · (y · (1 − p)² + (1 − y) · p²)), −1, 1)

   Here, s is 1 for `propose` and `for`, and −1 for `against`. p is the claimed probability that the change beats doing
   nothing, and y the probability that it did. The score is an expected value, so no agent gains at y = ½. A vote for a
   side claims at least even odds, so a confidence below ½ counts as ½ and earns nothing. Otherwise an agent could
   support harm forever at a low confidence. A `for` earns half but loses in full, because agreeing with good agents is
   cheap and should not offset an agent's own harm.
3. **Multiplicative weights** in linear form, r ← r · (1 + rate · merit), for agents that voted (Cesa-Bianchi,
   Mansour & Stoltz 2007, "Improved second-order bounds for prediction with expert advice"; after Freund & Schapire
   1997).
4. **Fixed share** (Herbster & Warmuth 1998, "Tracking the best expert") as forgetting: for every known agent r ← r +
   share · (1 − r). So an agent that was wrong in another phase of training regains influence. Then r is clipped to
   0..`reputation_most`.

This bounds the influence of a bad agent. The merit of supporting a decision without success (y = 0) is −min(1, 2p²).
That is −½ at even odds, and −1 from p = 0.71. Each such outcome multiplies the reputation by 1 − rate · min(1, 2p²)
before the share. After N(p) of them (see the table in docs/deciding.md), the reputation is below `least_reputation`.
From then on, the agent cannot veto and does not count towards the quorum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from oven_core.mesh.actuator_values import rounded
from oven_core.protocol.rules import Rules

Stance = Literal["propose", "for", "against"]


def success(gain: float, noise: float, forecast_size: float) -> float:
    """Return a voter's success, 0..1. `forecast_size` is the size of the change that the voter forecast, or 0."""
    required_gain = max(forecast_size / 2, 2 * noise)
    if noise <= 0:
        return 1.0 if gain > required_gain else 0.0
    return min(max(0.5 + (gain - required_gain) / (4 * noise), 0.0), 1.0)


def beat_probability(gain: float, noise: float) -> float:
    """Return the probability that the change beat doing nothing, with which confidences are compared.

    It is ½ at a gain of 0, 0 at two standard errors below, and 1 at two above. `success` requires a larger gain."""
    if noise <= 0:
        return 0.5 if gain == 0 else float(gain > 0)
    return min(max(0.5 + gain / (4 * noise), 0.0), 1.0)


def is_clearly_worse(gain: float, noise: float) -> bool:
    """Return whether a change is worse than doing nothing by at least two standard errors."""
    return gain < 0 and gain <= -2 * noise


def claimed_probability(stance: Stance, confidence: float) -> float:
    """Return the probability, claimed by a vote, that the change beats doing nothing. Its side gets at least ½."""
    for_own_side = max(confidence, 0.5)
    return 1 - for_own_side if stance == "against" else for_own_side


def brier(p: float, y: float) -> float:
    """Return the quadratic score of the claim `p` for an event of probability `y`; 0 is best (Brier 1950)."""
    return y * (1 - p) * (1 - p) + (1 - y) * p * p


def merit(stance: Stance, confidence: float, y: float) -> float:
    """Return the merit, −1..1, of a vote on a decision with success `y`."""
    side = -1 if stance == "against" else 1
    quadratic = brier(claimed_probability(stance, confidence), y)
    unscaled = min(max(0.5 * side * (2 * y - 1) + 0.5 * (1 - 4 * quadratic), -1.0), 1.0)
    if unscaled <= 0:
        return unscaled
    if confidence < 0.5:
        return 0.0
    return unscaled / 2 if stance == "for" else unscaled


def effective_reputation(reputation: float) -> float:
    """Return the reputation, or 0 if it is negative or not finite, because `RunStarted` may contain any number."""
    return reputation if math.isfinite(reputation) and reputation > 0 else 0.0


def updated_reputations(
    reputations: Mapping[str, float], agents: Iterable[str], merits: Mapping[str, float], rules: Rules
) -> dict[str, float]:
    """Return all reputations after one outcome, by name.

    Merit changes the reputations of voters, and the fixed share those of all `agents`."""
    after = {}
    for agent in sorted({*reputations, *agents, *merits}):
        r = min(effective_reputation(reputations.get(agent, 1.0)), rules.reputation_most)
        r *= 1 + rules.reputation_rate * merits.get(agent, 0.0)
        r += rules.reputation_share * (1 - r)
        after[agent] = rounded(min(max(r, 0.0), rules.reputation_most))
    return after
