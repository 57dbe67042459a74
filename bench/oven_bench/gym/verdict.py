"""HELPS, NO EFFECT, HARMS or INCONCLUSIVE: the rules, which were written before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from oven_bench.gym.score import ArmScore, Healthy
from oven_bench.statistics import Interval, Word, percentile_ends, resampled, word

FAMILIES = 6
"""Below so many nothing can be concluded: the interval is too narrow (a bootstrap of five has 126 samples)."""
MARGIN = 0.05
"""The smallest difference of scores that is of interest."""
WORSE = 0.1
"""More episodes worse than doing nothing than this are too many, however good the others."""
HEALTHY = 0.02
"""A share of a healthy run's final loss that is too much to pay for being watched."""


@dataclass(frozen=True, slots=True)
class Verdict:
    word: Word
    why: str
    best: str = ""
    """The baseline with the best mean."""
    difference: Interval | None = None
    """Of the score to the best baseline's."""


def verdict(subject: ArmScore | None, baselines: Mapping[str, ArmScore], healthy: Healthy | None) -> Verdict:
    """On one set of families, the same for all. In this order:

    - INCONCLUSIVE without the subject, without a baseline, or with fewer than FAMILIES families;
    - HARMS when the difference to the best baseline is surely below 0 (its interval's high end), when surely more than
      WORSE of the episodes end worse than with nothing done, or when it surely costs healthy runs more than HEALTHY;
    - HELPS when the difference is surely above 0, and the shares as measured are within those limits;
    - NO EFFECT when the whole interval is within ± MARGIN;
    - INCONCLUSIVE.

    An arm that never acts HARMS where a baseline surely helps: anyone who takes it goes without.
    """
    if subject is None or not baselines:
        return Verdict(
            "INCONCLUSIVE", "the arm that is judged was not run" if subject is None else "no baseline was run"
        )
    shared = [f for f in subject.families if all(f in other.families for other in baselines.values())]
    if len(shared) < FAMILIES:
        return Verdict(
            "INCONCLUSIVE",
            f"{len(shared)} families of faults were run by all; {FAMILIES} are the least to conclude from",
        )
    best, difference = compared(subject, baselines, shared)
    worse, harm = subject.worse, healthy.harm if healthy else None
    against = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] to {best}"
    share = f"{worse.mean:.1%} of episodes worse than nothing (at most {WORSE:.0%})"
    cost = f"healthy runs cost {harm.mean:.1%} of the final loss (at most {HEALTHY:.0%})" if harm else "no healthy runs"

    def said(word: Word, why: str) -> Verdict:
        return Verdict(word, why, best, difference)

    plain = word(difference.low, difference.high, MARGIN)
    if plain == "HARMS":
        return said("HARMS", against)
    if worse.low > WORSE:
        return said("HARMS", share)
    if harm and harm.low > HEALTHY:
        return said("HARMS", cost)
    if plain == "HELPS":
        if worse.mean > WORSE:
            return said("INCONCLUSIVE", f"{against}, but {share}")
        if harm is None or harm.mean > HEALTHY:
            return said("INCONCLUSIVE", f"{against}, but {cost}")
        return said("HELPS", f"{against}; {share}; {cost}")
    return said(plain, f"{against}, within ± {MARGIN:g}" if plain == "NO EFFECT" else against)


def compared(subject: ArmScore, baselines: Mapping[str, ArmScore], families: list[str]) -> tuple[str, Interval]:
    """The best baseline, and the difference to it over families, resampled in pairs. Which is best is found anew in
    each resample, as it was in the whole: the luck of having been picked is the baselines', never the subject's."""
    draws = resampled(len(families))
    mine = np.array([subject.families[f] for f in families])
    names = sorted(baselines)
    theirs = np.array([[baselines[name].families[f] for f in families] for name in names])  # [baselines, families]
    means = theirs.mean(axis=1)
    best = int(means.argmax())
    differences = mine[draws].mean(axis=1) - theirs[:, draws].mean(axis=2).max(axis=0)  # [draws]
    low, high = percentile_ends(differences)
    return names[best], Interval(float(mine.mean() - means[best]), low, high)
