"""`bench hostile`: what can faulty or hostile plugged-in agents do to a run?

Each case runs the real stack as `up` starts it (server, mesh, shipped agents, learner), without lockstep, and attackers
that only have an agent's key. It is compared with the same start and seed without them. From `tuned` nothing is wrong,
so the attack causes every loss. From `drill` the learning rate is ten times too high, and the shipped agents have to
get their remedy adopted.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from rich.console import Console
from typer import Option

from oven_bench.bench_command import Bench, HomeFolder, Json, home_folder, one_of, seed_list
from oven_bench.foreign.pairs_file import code_digest
from oven_bench.hostile.attack_effects import LEGEND, NOISE_SEEDS, figures, tables
from oven_bench.hostile.attacked_run import play
from oven_bench.hostile.attacks import ATTACKS, NOBODY, STARTS, USUAL, USUAL_STARTS, Attack, folder, named
from oven_bench.hostile.run_facts import Case, Row
from oven_bench.progress import progress
from oven_bench.results_file import Kept
from oven_bench.training.paired_runs import QUICK
from oven_bench.training.recipe_run import HELD_OUT
from oven_core.errors import ConfigError
from oven_recipes.grpo.settings import GrpoSettings

STEPS = 200
_ROW: Final = TypeAdapter(Row)


class Header(BaseModel):
    """First line of a `--rows` file. A later call must have the same one to continue the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bench: Literal["hostile"] = "hostile"
    code: str
    """Digest of the sources of the controller and of all agents, including the hostile ones."""
    quick: bool
    settings: tuple[str, ...] = ()
    """What `--set` said."""


def cases(
    attacks: Sequence[Attack], starts: Sequence[str], of: Sequence[int], steps: int, noise_seeds: int
) -> list[Case]:
    """The runs to make. Those without an attack come first, once per start and seed; the noise gets further seeds.
    Raises ConfigError for an attack that is defined for none of the starts."""
    for attack in attacks:
        if not set(attack.starts) & set(starts):
            raise ConfigError(f"{attack.name} is only defined for {' and '.join(attack.starts)}; add that to --starts")
    more = range(max(of) + 1, max(of) + 1 + max(0, noise_seeds - len(of)))
    found = [Case(NOBODY.name, start, seed, steps) for start in starts for seed in (*of, *more)]
    return found + [
        Case(attack.name, start, seed, steps)
        for attack in attacks
        for start in starts
        for seed in of
        if start in attack.starts
    ]


def _measured(
    of: Sequence[Case], home: Path, options: Mapping[str, object], settings: Sequence[str], jobs: int
) -> Iterator[Row]:
    """Rows as they come, `jobs` runs at a time. Each run has its own processes, so threads are enough here."""
    if not of:
        return
    begun = time.monotonic()
    with progress("runs", len(of)) as advance, ThreadPoolExecutor(jobs) as pool:
        playing = [pool.submit(play, case, ATTACKS.get(case.attack, NOBODY), home, options, settings) for case in of]
        try:
            for future in as_completed(playing):
                row = future.result()
                ended = "no result" if row.log.accuracy is None else f"{row.log.accuracy:.3f}"
                what = f"{row.case.attack or 'without'} {row.case.start} {row.case.seed}"
                advance(1, f"{what}: {ended} ({time.monotonic() - begun:.0f} s)")
                yield row
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _prompts(settings: Mapping[str, object]) -> int:
    """Number of held-out prompts of an evaluation, all levels together."""
    key, count = HELD_OUT["grpo"]
    found = GrpoSettings.model_validate({key: count, **settings})
    return found.eval_prompts * len(found.levels)


def _show(found: dict[str, Any]) -> None:
    console = Console()
    for table in tables(found):
        console.print(table)
    if found["attacks"]:
        console.print(LEGEND)
    for start, noise in found["noise"].items():
        console.print(f"noise from {start}: two runs without an attack end within {noise:.4f} of each other")


def bench(
    attacks: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Attacks to run; see below.", show_default="all but newcomer_granted"),
    ] = None,
    starts: Annotated[
        list[str] | None, one_of(STARTS, f"Where the runs begin; {' and '.join(USUAL_STARTS)} if omitted.")
    ] = None,
    seeds: Annotated[str, Option(help="E.g. 1,3 or 1-2.")] = "1-2",
    noise_seeds: Annotated[
        int, Option(min=1, metavar="N", help="Runs without an attack per start, to estimate the noise.")
    ] = NOISE_SEEDS,
    steps: Annotated[int, Option(min=1, help="Gradient steps of each run.")] = STEPS,
    jobs: Annotated[int, Option(min=1, help="Runs at a time.")] = 2,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="A setting of each run, as for `up`, e.g. rules.newcomers=full."),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Tiny models, only to check that it runs.")] = False,
    as_json: Json = False,
    rows_file: Annotated[
        Path | None,
        Option("--rows", metavar="FILE", help="Append each run as a JSON line; runs already in the file are skipped."),
    ] = None,
    home: HomeFolder = None,
) -> int:
    wanted = cases(named(attacks or USUAL), starts or USUAL_STARTS, seed_list(seeds), steps, noise_seeds)
    sizes: Mapping[str, object] = dict(QUICK) if quick else {}
    code = code_digest([_package("oven_controller"), _package("oven_agents"), folder()])
    header = Header(code=code, quick=quick, settings=tuple(settings or ()))
    kept = Kept(rows_file, header, _ROW) if rows_file else None
    rows = [row for row in kept.rows if row.case in wanted] if kept else []
    left = [case for case in wanted if case not in {row.case for row in rows}]
    with home_folder(home) as place:
        place.mkdir(parents=True, exist_ok=True)
        for row in _measured(left, place, sizes, settings or (), jobs):
            rows.append(row)
            if kept:
                kept.append(row)
    found = figures(rows, _prompts(sizes))
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0


BENCH = Bench(
    "hostile",
    bench,
    "what faulty and hostile agents do to a run: final accuracy, remedies, size of the log, processes left behind",
    "--attacks pair silencer --starts tuned --rows rows.jsonl",
    "\n\n".join(f"{name}: {attack.what}" for name, attack in ATTACKS.items()),
)
