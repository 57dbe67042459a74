"""`bench hostile`: what can faulty or hostile plugged-in agents do to a run?

Each case runs the real stack as `up` starts it (server, mesh, shipped agents, learner), without lockstep, and attackers
that have an agent's key and nothing more. It is compared with the same start and seed without them. From `tuned`
nothing is wrong, so the attack causes every loss. From `drill` the learning rate is ten times too high, and the shipped
agents have to get their remedy adopted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from pydantic import TypeAdapter

from oven_bench.hostile.attack_effects import NOISE_SEEDS, report
from oven_bench.hostile.attacked_run import play
from oven_bench.hostile.attacks import ATTACKS, NOBODY, STARTS, USUAL, USUAL_STARTS, Attack, folder, named
from oven_bench.hostile.run_facts import Case, Row
from oven_bench.study import (
    PATH,
    Report,
    ResultsFile,
    Study,
    code_digest,
    comma_separated,
    home_folder,
    home_option,
    jobs_option,
    package_folders,
    run_tasks,
    seed_list,
)
from oven_bench.training.recipe_run import HELD_OUT, QUICK
from oven_core.errors import ConfigError
from oven_recipes.grpo.settings import GrpoSettings

STEPS = 200
PACKAGES = ("oven_core", "oven_runs", "oven_controller", "oven_agents")


def cases(
    attacks: Sequence[Attack], starts: Sequence[str], seeds: Sequence[int], steps: int, noise_seeds: int
) -> list[Case]:
    """The runs to make. Those without an attack come first, once per start and seed; the noise gets further seeds.
    Raises ConfigError for an attack that is defined for none of the starts."""
    for attack in attacks:
        if not set(attack.starts) & set(starts):
            raise ConfigError(f"{attack.name} is only defined for {' and '.join(attack.starts)}; add that to --starts")
    more = range(max(seeds) + 1, max(seeds) + 1 + max(0, noise_seeds - len(seeds)))
    without = [Case(NOBODY.name, start, seed, steps) for start in starts for seed in (*seeds, *more)]
    return without + [
        Case(attack.name, start, seed, steps)
        for attack in attacks
        for start in starts
        for seed in seeds
        if start in attack.starts
    ]


def header(quick: bool, settings: Sequence[str]) -> dict[str, object]:
    """All that the results depend on: the code of the controller and of all agents, and the options."""
    code = code_digest([*package_folders(PACKAGES), folder()])
    return {"bench": "hostile", "code": code, "quick": quick, "settings": list(settings)}


def held_out_prompts(settings: Mapping[str, object]) -> int:
    """Number of held-out prompts of an evaluation, all levels together."""
    key, count = HELD_OUT["grpo"]
    grpo = GrpoSettings.model_validate({key: count, **settings})
    return grpo.eval_prompts * len(grpo.levels)


def _describe(row: Row) -> str:
    end = "no result" if row.log.accuracy is None else f"{row.log.accuracy:.3f}"
    return f"{row.case.attack or 'without'}, {row.case.start}, seed {row.case.seed}: {end}"


@click.option(
    "--attacks",
    default="",
    metavar="NAME,…",
    show_default="all but newcomer_granted",
    help="Attacks to run; see below.",
)
@click.option(
    "--starts",
    multiple=True,
    type=click.Choice([*STARTS]),
    help=f"Where the runs begin; repeat it for more. By default {' and '.join(USUAL_STARTS)}.",
)
@click.option("--seeds", default="1-2", help="E.g. 1,3 or 1-2.")
@click.option(
    "--noise-seeds",
    type=click.IntRange(min=1),
    default=NOISE_SEEDS,
    metavar="N",
    help="Runs without an attack per start, to estimate the noise.",
)
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, help="Gradient steps of each run.")
@jobs_option()
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of each run, as for `up`, e.g. rules.newcomers=full.",
)
@click.option("--quick", is_flag=True, help="Tiny models, only to check that it runs.")
@click.option("--results", type=PATH, metavar="FILE", help="Append runs as JSON lines; a second call continues there.")
@home_option
def bench(
    attacks: str,
    starts: Sequence[str],
    seeds: str,
    noise_seeds: int,
    steps: int,
    jobs: int,
    settings: Sequence[str],
    quick: bool,
    results: Path | None,
    home: Path | None,
) -> Report:
    chosen = named(comma_separated(attacks) or USUAL)
    wanted = cases(chosen, starts or USUAL_STARTS, seed_list(seeds), steps, noise_seeds)
    sizes: Mapping[str, object] = dict(QUICK) if quick else {}
    file = ResultsFile(results, TypeAdapter(Row), header(quick, settings)) if results else None
    rows = [row for row in file.rows if row.case in wanted] if file else []
    done = [row.case for row in rows]
    missing = [case for case in wanted if case not in done]
    with home_folder(home) as path:
        path.mkdir(parents=True, exist_ok=True)
        run = partial(play, home=path, options=sizes, settings=tuple(settings))
        for row in run_tasks(run, missing, jobs, describe=_describe):
            rows.append(row)
            if file:
                file.append(row)
    return report(rows, held_out_prompts(sizes))


STUDY = Study(
    "hostile",
    bench,
    "--attacks pair,silencer --starts tuned --results runs.jsonl",
    "\n\n".join(f"{name}: {attack.what}" for name, attack in ATTACKS.items()),
)
