"""`bench oracle`: does the oracle read activations, does GRPO add to the supervised stage, and do agents repair drills?

Six arms per seed (oven_bench/training/oracle_runs.py), each measured at its end on held-out items of the nine
benchmarks' templates, which are answered by yes or no, and on questions about held-out prompts, half of them open.
Compared are, paired by seed with Student's t intervals: the trained oracle's share of right answers with the texts' own
activations against that with other texts' and with none; GRPO against the supervised adapter that it began from; and
each drill with the agents against without. Differences are signed so that more is better: of Brier scores and
calibration errors, the other arm's minus the one's. The smallest differences of interest were stated beforehand.

Seeds 1-5 are for development, 21-25 for the figures that are published, which are run once. Of 60 steps, a seed takes
about 12 minutes on one core, five seeds about 35 minutes on two, and the model's pre-training once before that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from typer import Option

from oven_bench.bench_command import Bench, HomeFolder, Jobs, Json, home_folder, print_object, print_table, seed_list
from oven_bench.progress import progress
from oven_bench.results_file import Kept
from oven_bench.statistics import paired, word
from oven_bench.training.oracle_runs import ARMS, ITEMS, QUICK, SETTINGS, STEPS, Arm, Row, run
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError

SMALLEST = {"accuracy": 0.02, "prompts": 0.02, "brier": 0.01, "ece": 0.02}
"""The smallest difference of each figure that is of interest: of 0 to 1."""
ERRORS: Final = ("brier", "ece")
"""Of which less is better."""
SILENT: Final = {"verdict": "INCONCLUSIVE", "why": "a run has no answer that parses"}
"""Of a comparison with such a run: all of its answers are wrong, and two that say nothing would be alike."""
_ROW: Final = TypeAdapter(Row)


class Header(BaseModel):
    """First line of an `--out` file. A later call must have the same one to continue it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bench: Literal["oracle"] = "oracle"
    steps: int
    items: int
    quick: bool
    made_of: str
    """The stack's settings and the sizes, as JSON."""


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The object of `--json`, of the seeds that have all arms: each comparison's difference with its 95 % interval and
    its word, the means of each arm, and each run. Raises ConfigError below two seeds."""
    seeds = [seed for seed in sorted({r.seed for r in rows}) if {r.arm for r in rows if r.seed == seed} == set(ARMS)]
    if len(seeds) < 2:
        raise ConfigError(f"{len(seeds)} seeds have all arms, which gives no interval; give at least 2")
    of = {arm: [next(r for r in rows if (r.arm, r.seed) == (arm, seed)) for seed in seeds] for arm in ARMS}
    grpo = of["grpo"]
    return {
        "seeds": seeds,
        "true_against_shuffled": _controlled(grpo, {"accuracy": "shuffled", "prompts": "prompts_shuffled"}),
        "true_against_zero": _controlled(grpo, {"accuracy": "zero", "prompts": "prompts_zero"}),
        "grpo_against_sft": _arms(grpo, of["sft"]),
        "agents_in_constant_confidence": _arms(of["constant-on"], of["constant-off"]),
        "agents_in_overconfident": _arms(of["overconfident-on"], of["overconfident-off"]),
        "means": {arm: {name: _mean([getattr(r, name) for r in of[arm]]) for name in SMALLEST} for arm in ARMS},
        "runs": [r.model_dump(mode="json") for r in sorted(rows, key=lambda r: (r.seed, ARMS.index(r.arm)))],
    }


def _arms(one: Sequence[Row], other: Sequence[Row]) -> dict[str, Any]:
    """Both shares of right answers, Brier score and ECE of two arms."""
    if any(r.unparsed == 1 for r in (*one, *other)):
        return dict.fromkeys(SMALLEST, SILENT)
    found: dict[str, Any] = {}
    for name, smallest in SMALLEST.items():
        first, second = ([getattr(r, name) for r in rows] for rows in (one, other))
        better, worse = (second, first) if name in ERRORS else (first, second)
        found[name] = _compared(better, worse, smallest)
    return found


def _controlled(rows: Sequence[Row], control_of: Mapping[str, str]) -> dict[str, Any]:
    """Shares of right answers, each against its control in the same run."""
    if any(r.unparsed == 1 for r in rows):
        return dict.fromkeys(control_of, SILENT)
    return {
        name: _compared([getattr(r, name) for r in rows], [getattr(r, control) for r in rows], SMALLEST[name])
        for name, control in control_of.items()
    }


def _compared(one: Sequence[float], other: Sequence[float], smallest: float) -> dict[str, Any]:
    found = paired(one, other)
    return {
        "difference": round(found.mean, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "verdict": word(found.low, found.high, smallest),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


def missing(seeds: Sequence[int], rows: Sequence[Row]) -> list[tuple[Arm, int]]:
    """Runs that are still to be made, seed by seed."""
    there = {(r.arm, r.seed) for r in rows}
    return [(arm, seed) for seed in seeds for arm in ARMS if (arm, seed) not in there]


def _made(left: Sequence[tuple[Arm, int]], one: Callable[..., Row], jobs: int, *given: Any) -> Iterator[Row]:
    """Rows in the order in which they end, one thread each."""
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")
    with progress("runs", len(left)) as advance, workers(jobs) as pool:
        for future in as_completed([pool.submit(one, arm, seed, *given) for arm, seed in left]):
            found = future.result()
            advance(1, f"{found.arm} {found.seed}: {found.accuracy:.3f} ({found.seconds:.0f} s)")
            yield found


def bench(
    seeds: Annotated[str, Option(help="E.g. 1,3 or 1-5; about 12 min each on one core.")] = "1-5",
    steps: Annotated[int, Option(min=1, help="GRPO steps of each run.")] = STEPS,
    items: Annotated[int, Option(min=2, help="Of each benchmark, at three depths.")] = ITEMS,
    jobs: Jobs = 2,
    quick: Annotated[bool, Option("--quick", help="Tiny models, to see that it runs; no figure to keep.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, Option(metavar="FILE", help="Write each run there, as a JSON line.")] = None,
    resume: Annotated[bool, Option("--resume", help="Make what the file of --out lacks.")] = False,
    home: HomeFolder = None,
) -> int:
    wanted = seed_list(seeds)
    if len(set(wanted)) < 2:
        raise ConfigError(f"--seeds {seeds} gives no interval; give at least 2")
    if resume and out is None:
        raise ConfigError("--resume continues a file: name it with --out")
    if out is not None and out.exists() and not resume:
        raise ConfigError(f"{out} is there already; give another file, or --resume to make what it lacks")
    made_of = json.dumps({"stack": SETTINGS, "sizes": QUICK if quick else {}})
    header = Header(steps=steps, items=items, quick=quick, made_of=made_of)
    kept = Kept(out, header, _ROW) if out is not None else None
    rows = [r for r in kept.rows if r.seed in wanted] if kept else []
    with home_folder(home) as place:
        place.mkdir(parents=True, exist_ok=True)
        left = missing(wanted, rows)
        for part in (left[:1], left[1:]):  # the first makes the model that all of them share
            for made in _made(part, run, jobs, steps, items, str(place), quick) if part else ():
                rows.append(made)
                if kept:
                    kept.append(made)
    found = figures(rows)
    if as_json:
        print_object(found, as_json)
    else:
        print_table({name: value for name, value in found.items() if name != "runs"}, HEADINGS, table(rows))
    return 0


HEADINGS = (
    "seed",
    "arm",
    "accuracy",
    "shuffled",
    "zero",
    "prompts",
    "shuffled",
    "zero",
    "Brier",
    "ECE",
    "unparsed",
    "changes",
)


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line per run."""
    return [
        (
            str(r.seed),
            r.arm,
            *(f"{value:.3f}" for value in (r.accuracy, r.shuffled, r.prompts, r.prompts_shuffled)),
            *("" if value is None else f"{value:.3f}" for value in (r.brier, r.ece)),
            f"{r.unparsed:.0%}",
            ", ".join(f"{c.actuator} {c.after} at {c.step}" for c in r.changes),
        )
        for r in sorted(rows, key=lambda r: (r.seed, ARMS.index(r.arm)))
    ]


BENCH = Bench(
    "oracle",
    bench,
    "the recipe oracle: activations against shuffled and none, GRPO against SFT, agents on and off in two drills",
    "--seeds 1-5 --out oracle.jsonl --json",
)
