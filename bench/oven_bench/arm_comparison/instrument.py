"""`bench arm-comparison`: is the A/B's instrument right about arms whose true difference is known?

Of each setting so many experiments are drawn: without a difference, with a gain as large as the instrument said it
could detect (once from the setting's own variances, once from a pilot of development seeds that is drawn anew for each
experiment), and with a difference of two points, which NO EFFECT must not be said of. Exit code 1 if in any setting the
coverage of the 95 % interval is outside .93–.97, if HELPS is said of fewer than .75 of the gains, if HELPS or HARMS is
said of more than .07 of no difference, or NO EFFECT of more than .07 of two points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import numpy as np
from typer import Option

from oven_bench.arm_comparison.clustered import EQUIVALENCE, Comparison, compare
from oven_bench.arm_comparison.detectable import Design, detectable, parts_of
from oven_bench.arm_comparison.simulated_arms import SETTINGS, SimulatedArms
from oven_bench.bench_command import Bench, Json, print_object, print_table

COVERAGE: Final = (0.93, 0.97)
HELPS: Final = 0.75
FALSE_ALARMS: Final = 0.07
PILOT: Final = Design(seeds=4, tasks=40, samples=8)
"""Development seeds, tasks and samples of a pilot: less than an experiment has."""


def measure(simulations: int, design: Design, seed: int) -> dict[str, Any]:
    """Setting → its figures."""
    return {setting.name: _setting(SimulatedArms(setting, seed), simulations, design, seed) for setting in SETTINGS}


def _setting(arms: SimulatedArms, simulations: int, design: Design, seed: int) -> dict[str, Any]:
    gain = detectable(arms.parts(), design)
    none = _drawn(arms, simulations, design, (seed, 0), lambda rng: arms.shift_for(0.0))
    helped = _drawn(arms, simulations, design, (seed, 1), lambda rng: arms.shift_for(gain))
    small = _drawn(arms, simulations, design, (seed, 2), lambda rng: arms.shift_for(EQUIVALENCE))
    said: list[float] = []

    def piloted(rng: np.random.Generator) -> float | None:
        try:
            found = detectable(parts_of(*arms.draw(rng, PILOT, arms.shift_for(0.0))), design)
        except ValueError:  # the pilot knows too little to promise anything
            return None
        said.append(found)
        return arms.shift_for(found)

    after_pilot = _drawn(arms, simulations, design, (seed, 3), piloted)
    return {
        "coverage": _share(none + helped, lambda truth, found: found.low <= truth <= found.high),
        "changed_of_none": _share(none, lambda truth, found: found.verdict in ("HELPS", "HARMS")),
        "no_effect_of_none": _share(none, lambda truth, found: found.verdict == "NO EFFECT"),
        "no_effect_of_two_points": _share(small, lambda truth, found: found.verdict == "NO EFFECT"),
        "detectable": round(gain, 4),
        "helps_of_detectable": _share(helped, lambda truth, found: found.verdict == "HELPS"),
        "detectable_by_pilot_median": round(float(np.median(said)), 4) if said else None,
        "helps_of_detectable_by_pilot": _share(after_pilot, lambda truth, found: found.verdict == "HELPS"),
        "pilots_that_promise_nothing": simulations - len(said),
    }


def _drawn(
    arms: SimulatedArms,
    simulations: int,
    design: Design,
    seed: tuple[int, ...],
    shift_of: Callable[[np.random.Generator], float | None],
) -> list[tuple[float, Comparison]]:
    """(true difference, what was found), an experiment each."""
    rng = np.random.default_rng(list(seed))
    found = []
    for _ in range(simulations):
        shift = shift_of(rng)
        if shift is not None:
            found.append((arms.difference_at(shift), compare(*arms.draw(rng, design, shift))))
    return found


def _share(of: list[tuple[float, Comparison]], holds: Callable[[float, Comparison], bool]) -> float | None:
    return round(sum(holds(*one) for one in of) / len(of), 4) if of else None


def passed(found: dict[str, Any]) -> bool:
    """Whether every setting keeps what is promised."""
    return all(
        COVERAGE[0] <= of["coverage"] <= COVERAGE[1]
        and min(of["helps_of_detectable"], of["helps_of_detectable_by_pilot"] or 0.0) >= HELPS
        and max(of["changed_of_none"], of["no_effect_of_two_points"]) <= FALSE_ALARMS
        for of in found.values()
    )


def bench(
    simulations: Annotated[int, Option(min=10, help="Experiments drawn per setting and kind.")] = 1000,
    seeds: Annotated[int, Option(min=2, help="Trainings per arm in an experiment.")] = 5,
    tasks: Annotated[int, Option(min=2, help="Held-out tasks.")] = 60,
    samples: Annotated[int, Option(min=1, help="Tries at each task.")] = 8,
    seed: Annotated[int, Option(help="Random seed.")] = 1,
    as_json: Json = False,
) -> int:
    found = measure(simulations, Design(seeds, tasks, samples), seed)
    ok = passed(found)
    whole = {"simulations": simulations, "design": [seeds, tasks, samples], "settings": found, "passed": ok}
    if as_json:
        print_object(whole, as_json)
    else:
        figures = list(next(iter(found.values())))
        rows = [
            (figure.replace("_", " "), *("–" if of[figure] is None else f"{of[figure]:g}" for of in found.values()))
            for figure in figures
        ]
        print_table({"passed": ok}, ("", *found), rows)
    return 0 if ok else 1


BENCH = Bench(
    "arm-comparison",
    bench,
    "simulated arms of known difference: coverage, power at the detectable gain, false alarms",
    "--simulations 1000 --json",
)
