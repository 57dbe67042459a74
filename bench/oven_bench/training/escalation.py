"""`bench escalation`: a small teacher is absorbed; does the run end higher where the agent may leave it?

Three arms per seed, which share warm-up, teachers and prompts: `on` is the real stack with the agent `teacher` alone,
in lockstep; in `off` nothing is changed; in `strong` neither, and the strong teacher is there from the start. The drill
was made so that the small teacher is absorbed: it says whether the agent sees that and what its remedy is worth, not
how often it is met. The figure is the final held-out accuracy, on minus off, paired by seed, with Student's t interval.
What the agent does beside the swap, above all to β, is part of the arm and is counted.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
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
from oven_bench.training.absorbed_teacher import ARMS, STEPS, Arm, Row, drill, prepared, row, with_stack, without_stack
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError

SMALLEST = 0.02
"""The smallest difference of held-out accuracy that is of interest."""
ABSORBED = "is absorbed"
"""What the agent's reason says where that rule spoke."""
_ROW: Final = TypeAdapter(Row)


class Header(BaseModel):
    """First line of an `--out` file. A later call must have the same one to continue it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bench: Literal["escalation"] = "escalation"
    steps: int
    quick: bool
    drill: str
    """What it is made of, as JSON."""


def run(arm: Arm, seed: int, steps: int, home: str, quick: bool) -> Row:
    """One run, in this process. Raises ProcessError when the stack failed: no result is made up for it."""
    began = time.monotonic()
    os.environ["OVEN_HOME"] = home
    with tempfile.TemporaryDirectory() as folder:
        given = (arm, seed, steps, Path(folder), Path(home) / "cache", quick)
        messages = with_stack(lambda: prepared(*given)) if arm == "on" else without_stack(prepared(*given))
    return row(arm, seed, messages, time.monotonic() - began)


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The object of `--json`, of the seeds that have all arms: means of the final held-out accuracies, 0 to 1; on minus
    off and strong minus off with 95 % t intervals over seeds; the word for the first; in how many runs the agent
    swapped, and in how many of these because the teacher was absorbed; and each run. Raises ConfigError below two
    seeds."""
    whole = [seed for seed in sorted({r.seed for r in rows}) if {r.arm for r in rows if r.seed == seed} == set(ARMS)]
    if len(whole) < 2:
        raise ConfigError(f"{len(whole)} seeds have all arms, which gives no interval; give at least 2")
    by_arm = {arm: [next(r for r in rows if (r.arm, r.seed) == (arm, seed)) for seed in whole] for arm in ARMS}
    ends = {arm: [r.accuracy for r in of_arm] for arm, of_arm in by_arm.items()}
    gain, room = paired(ends["on"], ends["off"]), paired(ends["strong"], ends["off"])
    swaps = [r.swap for r in by_arm["on"] if r.swap is not None]
    return {
        "seeds": whole,
        **{f"mean_{arm}": round(fmean(ends[arm]), 4) for arm in ARMS},
        "difference": round(gain.mean, 4),
        "difference_low": round(gain.low, 4),
        "difference_high": round(gain.high, 4),
        "verdict": word(gain.low, gain.high, SMALLEST),
        "strong_difference": round(room.mean, 4),
        "strong_difference_low": round(room.low, 4),
        "strong_difference_high": round(room.high, 4),
        "escalated": len(swaps),
        "because_absorbed": sum(ABSORBED in swap.why for swap in swaps),
        "swap_steps": [swap.step for swap in swaps],
        "other_changes_per_run": round(
            fmean(sum(c.actuator != "teacher.active" for c in r.changes) for r in by_arm["on"]), 2
        ),
        "runs": [r.model_dump(mode="json") for r in sorted(rows, key=lambda r: (r.seed, ARMS.index(r.arm)))],
    }


def missing(seeds: Sequence[int], rows: Sequence[Row]) -> list[tuple[Arm, int]]:
    """Runs that are still to be made, seed by seed."""
    there = {(r.arm, r.seed) for r in rows}
    return [(arm, seed) for seed in seeds for arm in ARMS if (arm, seed) not in there]


def _made(left: Sequence[tuple[Arm, int]], steps: int, home: Path, quick: bool, jobs: int) -> Iterator[Row]:
    """Rows in the order in which they end, one thread each."""
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false")
    with progress("runs", len(left)) as advance, workers(jobs) as pool:
        for future in as_completed([pool.submit(run, arm, seed, steps, str(home), quick) for arm, seed in left]):
            found = future.result()
            advance(1, f"{found.arm} {found.seed}: {found.accuracy:.3f} ({found.seconds:.0f} s)")
            yield found


def bench(
    seeds: Annotated[str, Option(help="E.g. 1,3 or 1-5; about 3 min each.")] = "1-5",
    steps: Annotated[int, Option(min=40, help="Gradient steps of each run.")] = STEPS,
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
    kept = Kept(out, Header(steps=steps, quick=quick, drill=drill(quick)), _ROW) if out is not None else None
    rows = [r for r in kept.rows if r.seed in wanted] if kept else []
    with home_folder(home) as place:
        place.mkdir(parents=True, exist_ok=True)
        for made in _made(missing(wanted, rows), steps, place, quick, jobs):
            rows.append(made)
            if kept:
                kept.append(made)
    found = figures(rows)
    if as_json:
        print_object(found, as_json)
    else:
        print_table({name: value for name, value in found.items() if name != "runs"}, HEADINGS, table(rows))
    return 0


HEADINGS = ("seed", *ARMS, "swapped at", "KL before → then", "other changes")


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line per seed: final accuracies, and what the agent did."""
    lines = []
    for seed in sorted({r.seed for r in rows}):
        of_seed = {r.arm: r for r in rows if r.seed == seed}
        on, swap = of_seed.get("on"), of_seed["on"].swap if "on" in of_seed else None
        lines.append((
            str(seed),
            *(f"{of_seed[arm].accuracy:.3f}" if arm in of_seed else "" for arm in ARMS),
            str(swap.step) if swap else "never",
            f"{on.kl_first:.3f} → {on.kl_swapped:.3f}" if on and on.kl_swapped is not None else "",
            ", ".join(f"{c.actuator} {c.after} at {c.step}" for c in on.changes if c != swap) if on else "",
        ))  # fmt: skip
    return lines


BENCH = Bench(
    "escalation",
    bench,
    "a small teacher is absorbed: final held-out accuracy with and without the agent that leaves it",
    "--seeds 1-5 --out escalation.jsonl --json",
)
