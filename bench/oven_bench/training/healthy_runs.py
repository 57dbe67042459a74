"""`bench healthy`: how often does the swarm meddle with a run that needs nothing?

Hard negatives, each from the tuned start: a warm-up, the user's own decay, a run that continues long after it has
flattened, and one whose reward sits at its ceiling. Under the real stack, as `up` starts it.
"""

from __future__ import annotations

from typing import Annotated

from typer import Option

from oven_bench.bench_command import Bench, FirstSeed, HomeFolder, Jobs, Json, home_folder, one_of, print_object
from oven_bench.training.recipe_run import Episode, run_all

CASES: dict[str, tuple[int, tuple[tuple[str, object], ...]]] = {
    "warm-up": (150, (("lr_warmup_steps", 60),)),
    "decay": (150, (("schedule", "cosine"),)),
    "plateau": (400, ()),
    "ceiling": (300, (("lengths", "[3]"),)),
}
"""Case → (gradient steps, the recipe's settings)."""


def bench(
    seeds: Annotated[int, Option(min=1, help="Runs of each case; about 2 min each on one core.")] = 3,
    first_seed: FirstSeed = 1,
    case: Annotated[list[str] | None, one_of(CASES, "Only this case; repeat it for more.")] = None,
    jobs: Jobs = 2,
    as_json: Json = False,
    home: HomeFolder = None,
) -> int:
    with home_folder(home) as folder:
        results = run_all(
            [
                Episode("swarm", "tuned", seed, steps, str(folder), label=name, options=extra)
                for seed in range(first_seed, first_seed + seeds)
                for name, (steps, extra) in CASES.items()
                if name in (case or CASES)
            ],
            jobs,
        )
    found: dict[str, object] = {}
    for name in case or CASES:
        of_case = [result for result in results if result.episode.label == name]
        steps = sum(result.episode.steps for result in of_case)
        meddled = sum(result.interventions for result in of_case)
        found[f"{name}_steps"], found[f"{name}_interventions"] = steps, meddled
        found[f"{name}_per_1000"] = round(1000 * meddled / steps, 3)
    print_object(found, as_json)
    return 0


BENCH = Bench(
    "healthy", bench, "interventions per 1,000 steps on warm-up, decay, plateau and ceiling", "--seeds 3 --json"
)
