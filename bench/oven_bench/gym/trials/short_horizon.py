"""`bench short-horizon`: which rates a short look at them would keep in healthy runs, and what keeping them is worth.

After few steps a lower rate looks better whatever it does later (Wu et al. 2018, arXiv 1803.02021). Rates are tried
from the same states with and without the cool-down, and what each scheme would keep stands beside the true effect: the
run played to its end with the rate changed for good, against the same run without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated, Any

import torch
from typer import Option

from oven_bench.bench_command import Bench, FirstSeed, Json, print_object, print_table
from oven_bench.gym.arms.auto_rate import RATE
from oven_bench.gym.fault import Trainee
from oven_bench.gym.task_table import task
from oven_bench.gym.trainee_factory import Make, make
from oven_bench.gym.trials.ordered_trials import DEFAULT, NEVER, Order, OrderingLink, Run, Seen
from oven_bench.gym.trials.planted_arms import TASKS
from oven_bench.progress import progress
from oven_bench.statistics import bootstrapped_mean

FACTORS = (0.1, 0.3, 0.5, 2.0)
"""× the rate."""
STARTS = (40, 90, 140)
"""Ticks at which the rates are tried."""
END, DECAY = 230, 20
"""The last step, and over how many more the rate falls to nothing where both ends are to be compared cooled down."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One rate from one state."""

    kind: str
    seed: int
    start: int
    factor: float
    kept: bool
    """Without a cool-down."""
    kept_cooled: bool
    worth: float
    """What the changed rate takes off the loss at the end of the run, as a share of it (`Task.size`)."""
    worth_cooled: float
    """The same where the rate of both falls to nothing over the last DECAY steps."""


def tried(make: Make, kind: str, seed: int, steps: int, starts: Sequence[int] = STARTS, end: int = END) -> list[Tried]:
    """Every rate from every start of one run, which itself keeps none of them."""
    looks = {start: _looks(make(kind, seed), start, steps) for start in starts}
    trainee, found = make(kind, seed), list[Tried]()
    for start in starts:
        while trainee.gradient_steps < start:
            trainee.train_step()
        state = trainee.branch_state()
        losses = _ends(trainee, 1.0, end)
        trainee.restore_branch(state)
        for factor in FACTORS:
            changed = _ends(trainee, factor, end)
            trainee.restore_branch(state)
            worth = [(loss - other) / task(kind).size(loss) for loss, other in zip(losses, changed, strict=True)]
            plain, cooled = looks[start][factor]
            found.append(Tried(kind, seed, start, factor, plain.would_keep, cooled.would_keep, *worth))
    return found


def _looks(trainee: Trainee, start: int, steps: int) -> dict[float, tuple[Seen, Seen]]:
    """Factor → the trial without a cool-down, and with it. All of them begin from one state, a step behind `start`,
    each with its own client."""
    while trainee.gradient_steps < start:
        trainee.train_step()
    state = trainee.branch_state()
    found = {}
    for factor in FACTORS:
        both = []
        for cooldown in (0, DEFAULT.trial_cooldown):
            trainee.restore_branch(state)
            run = Run(trainee, OrderingLink([(1, Order([{RATE: factor}], steps, cooldown, NEVER))]))
            run.play(1)
            both += run.close()
        found[factor] = (both[0], both[1])
    return found


def _ends(trainee: Trainee, factor: float, end: int) -> tuple[float, float]:
    """The loss at the end, and where the rate fell to nothing before it."""
    trainee.actuators.apply(RATE, factor)
    while trainee.gradient_steps < end - DECAY:
        trainee.train_step()
    late = trainee.branch_state()
    while trainee.gradient_steps < end:
        trainee.train_step()
    plain = trainee.quality()
    trainee.restore_branch(late)
    for left in range(DECAY, 0, -1):
        trainee.actuators.apply(RATE, factor * left / DECAY)
        trainee.train_step()
    return plain, trainee.quality()


def table(found: Sequence[Tried]) -> list[dict[str, Any]]:
    """By task and factor; `kept` and `kept_cooled` are shares."""
    rows = []
    for kind in dict.fromkeys(one.kind for one in found):
        for factor in FACTORS:
            of = [one for one in found if (one.kind, one.factor) == (kind, factor)]
            rows.append({"task": kind, "factor": factor, "n": len(of), **_figures(of)})
    return rows


def _figures(of: Sequence[Tried]) -> dict[str, float]:
    told: dict[str, float] = {
        name: round(fmean(getattr(one, name) for one in of), 4) for name in ("kept", "kept_cooled")
    }
    for name in ("worth", "worth_cooled"):
        interval = bootstrapped_mean([getattr(one, name) for one in of])
        told |= {name: round(interval.mean, 4), f"{name}_low": round(interval.low, 4)}
        told |= {f"{name}_high": round(interval.high, 4)}
    return told


def figures(found: Sequence[Tried]) -> dict[str, Any]:
    """What each scheme would have kept, and what that was worth at the end."""
    told: dict[str, Any] = {"rates_tried": len(found)}
    for scheme in ("kept", "kept_cooled"):
        kept = [one for one in found if getattr(one, scheme)]
        told |= {
            f"{scheme}_share": round(len(kept) / len(found), 4),
            f"{scheme}_n": len(kept),
            f"{scheme}_worth": _mean(one.worth for one in kept),
            f"{scheme}_worth_cooled": _mean(one.worth_cooled for one in kept),
            f"{scheme}_and_worse": sum(one.worth < 0 for one in kept),
            f"{scheme}_and_worse_cooled": sum(one.worth_cooled < 0 for one in kept),
        }
    return told


def _mean(values: Iterable[float]) -> float | None:
    listed = [*values]
    return round(fmean(listed), 4) if listed else None


def bench(
    seeds: Annotated[int, Option(min=1, help="Runs of each task; about 40 s each on one core.")] = 3,
    first_seed: FirstSeed = 1,
    steps: Annotated[int, Option(min=1, help="Steps after which the rates are compared.")] = 8,
    as_json: Json = False,
) -> int:
    torch.set_num_threads(1)
    found: list[Tried] = []
    with progress("runs", len(TASKS) * seeds) as advance:
        for kind, seed in _runs(range(first_seed, first_seed + seeds)):
            found += tried(make, kind, seed, steps)
            advance(1, f"{kind} {seed}")
    rows = table(found)
    if as_json:
        print_object({**figures(found), "table": rows, "rows": [asdict(one) for one in found]}, as_json)
    else:
        headings = ("task", "rate ×", "n", "kept", "kept, cooled", "worth", "worth, cooled")
        print_table(figures(found), headings, [_line(row) for row in rows])
    return 0


def _runs(seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    return ((kind, seed) for kind in TASKS for seed in seeds)


def _line(row: Mapping[str, Any]) -> list[str]:
    ends = [(row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in ("worth", "worth_cooled")]
    worth = [f"{mean:+.1%} [{low:+.1%}, {high:+.1%}]" for mean, low, high in ends]
    shares = [f"{row[name]:.0%}" for name in ("kept", "kept_cooled")]
    return [row["task"], f"{row['factor']:g}", str(row["n"]), *shares, *worth]


BENCH = Bench(
    "short-horizon",
    bench,
    "rates tried for a few steps with and without a cool-down, and what keeping them is worth in the end",
    "--seeds 3 --steps 8 --json",
)
