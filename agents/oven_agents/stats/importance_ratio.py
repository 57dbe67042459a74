"""Whether completions come from another policy than the one that is trained."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from oven_agents.sdk.window import Window

KL: Final = "kl"
BEYOND: Final = 200.0
"""Mean of the KL's estimate, in nats per token, above which completions are another policy's: on tokens of its own the
probability is at most 1/200 (Markov's inequality)."""
LATELY: Final = 40
"""Ticks, those that a rollback threw away among them: it is the run that is asked about, and not its weights."""


def is_off_policy(window: Window, since: int | None = None) -> bool:
    """Whether they do lately, or since tick `since` where that is longer ago.

    From the estimate of the KL to the reference model, r − 1 − ln r with r = π_ref/π on the sampled tokens (Schulman
    2020, "Approximating KL divergence", k3; TRL's `kl`). On tokens of its own a policy's mean of r is 1, whatever the
    reference, so that r's mean over many ticks lies above BEYOND with a probability of at most 1/BEYOND (Markov's
    inequality); −ln r by itself stays far below, where probabilities are floats. BEYOND times what the estimate was
    before, for some report it summed over a completion.

    An estimate that explodes is not a policy that drifts, but tokens that the policy would never have sampled: workers
    with other weights, a stale cache, a tool's answer that is counted as a completion. They come again after each
    rollback, and no anchor holds them; the policy has to get used to them.
    """
    ticks = LATELY if since is None else max(LATELY, window.tick - since)
    kls = window.surviving_series(KL)
    before = [value for tick, value in kls if tick <= window.tick - ticks and math.isfinite(value)]
    now = sum(value for value in window.series(KL, after=window.tick - ticks) if value > 0)  # inf counts
    return now > BEYOND * ticks * max(1.0, median(before) if before else 1.0)
