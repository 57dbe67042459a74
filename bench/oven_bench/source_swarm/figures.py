"""What the experiment says: paired gains in held-out bits per byte, their intervals, and a word for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from oven_bench.statistics import paired, word

ENOUGH: Final = 5
"""Seeds below which no word is said but INCONCLUSIVE."""
SMALLEST: Final = 0.02
"""Bits per byte: the smallest gain of interest, about a hundredth of what such a model needs, as in `token-prior`."""
COMPARED: Final = (
    ("source.as_coded", "alone"),
    ("source.as_written", "alone"),
    ("source.with_rate", "alone"),
    ("ours", "alone"),
    ("ours", "source.as_coded"),
    ("ours", "source.as_written"),
    ("ours", "ours.without"),
    ("ours", "ours.shuffled"),
    ("alone", "plain"),
)
"""(arm, the arm that it is held against). The last says what the source's start alone does."""


class Row(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    seed: int
    served: float
    """Held-out bits per byte of the final weights as they are served, rounded. What arms are compared by."""
    exact: float
    """The same of the weights as they are."""
    turned: dict[str, int]
    """Actuator → changes that were applied."""
    cpu_s: float


def figures(rows: Sequence[Row], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The object of `--json`. A gain is what an arm needs fewer bits by, over the seeds that both arms have."""
    arms = list(dict.fromkeys(row.arm for row in rows))
    found: dict[str, Any] = dict(settings)
    found["seeds"] = sorted({row.seed for row in rows})
    for measure in ("served", "exact"):
        found[f"bits_per_byte_{measure}"] = {
            arm: round(fmean(getattr(row, measure) for row in rows if row.arm == arm), 4) for arm in arms
        }
    found["changes_per_run"] = {arm: _changes([row for row in rows if row.arm == arm]) for arm in arms}
    found["gains"] = [gain for one, other in COMPARED if (gain := compared(rows, one, other)) is not None]
    found["verdict"] = next(
        (gain["verdict"] for gain in found["gains"] if (gain["arm"], gain["over"]) == ("ours", "source.as_coded")),
        "INCONCLUSIVE",
    )
    found["cpu_s"] = round(sum(row.cpu_s for row in rows), 1)
    return found


def compared(rows: Sequence[Row], one: str, other: str) -> dict[str, Any] | None:
    """The gain of one arm over another with its 95 % interval, of the weights as served and as they are. None below two
    seeds that both have."""
    by_seed = {(row.arm, row.seed): row for row in rows}
    seeds = [row.seed for row in rows if row.arm == one and (other, row.seed) in by_seed]
    if len(seeds) < 2:
        return None
    found: dict[str, Any] = {"arm": one, "over": other, "seeds": len(seeds)}
    for measure, suffix in (("served", ""), ("exact", "_exact")):
        theirs, ours = ([getattr(by_seed[arm, seed], measure) for seed in seeds] for arm in (other, one))
        gain = paired(theirs, ours)
        found |= {f"{end}{suffix}": round(getattr(gain, end), 4) for end in ("mean", "low", "high")}
        said = word(gain.low, gain.high, SMALLEST) if len(seeds) >= ENOUGH else "INCONCLUSIVE"
        found[f"verdict{suffix}"] = said
    return found


def _changes(rows: Sequence[Row]) -> dict[str, float]:
    """Actuator → applied changes in a run, on average; most first."""
    total = Counter[str]()
    for row in rows:
        total.update(row.turned)
    return {name: round(count / len(rows), 2) for name, count in total.most_common()}
