"""What swaps of the teacher cost a training: steps lost or repeated, and seconds that a step took longer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

WARM_UP = 3
"""Steps at the beginning that are left out: the first ones compile, connect and fill caches."""


@dataclass(frozen=True, slots=True)
class Swap:
    """`step` is the one after whose update the swap was applied: the next is the first under the new teacher."""

    step: int
    before: str
    after: str


def lost_and_repeated(published: Sequence[int], trained: int) -> tuple[int, int]:
    """Of the steps 1 to `trained`: how many the observations lack, and how many observations are one too many."""
    seen = Counter(step for step in published if step > 0)
    lost = sum(step not in seen for step in range(1, trained + 1))
    return lost, sum(seen.values()) - len(seen)


@dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds by which two steps were longer together than their medians: the one that applied a swap, and the first
    under the new teacher. A step that was shorter than its median counts as that."""

    of: Mapping[str, Sequence[float]]
    """New teacher → of each swap to it."""
    without: Sequence[float]
    """The same of pairs of steps without a swap: the noise that the others stand in."""
    step_s: Mapping[str, float]
    """Teacher → median step under it, without those beside a swap."""


def stalls(seconds: Mapping[int, float], swaps: Sequence[Swap], first: str, other_work: Collection[int] = ()) -> Stalls:
    """From each step's seconds. `other_work` are steps that took longer for a known reason: they count nowhere. A swap
    beside one of these, beside another swap or beside the end has no stall that could be told."""
    ordered = sorted(swaps, key=lambda swap: swap.step)
    at = {swap.step: swap for swap in ordered}
    beside = {step for swap in ordered for step in (swap.step, swap.step + 1)}
    under: dict[int, str] = {}
    active = first
    for step in sorted(seconds):
        under[step] = active
        if step in at:
            active = at[step].after
    quiet = [step for step in sorted(seconds) if step > WARM_UP and step not in beside and step not in other_work]
    typical = {
        name: median(seconds[step] for step in quiet if under[step] == name) for name in {under[step] for step in quiet}
    }

    def longer(step: int) -> float:
        return max(0.0, seconds[step] - typical[under[step]])

    found: dict[str, list[float]] = {}
    for swap in ordered:
        pair = (swap.step, swap.step + 1)
        alone = not any(other.step in pair for other in ordered if other is not swap)
        if alone and all(step in seconds and step not in other_work and under[step] in typical for step in pair):
            found.setdefault(swap.after, []).append(sum(map(longer, pair)))
    without = [longer(one) + longer(other) for one, other in pairwise(quiet) if other == one + 1]
    return Stalls(found, without, typical)
