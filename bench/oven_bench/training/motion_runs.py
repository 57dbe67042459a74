"""`bench motion`: does the recipe motion raise the reward of intents that it was not trained on, and at what cost?

Each seed is a run of the real stack from the tuned start, one after another, each on one thread. CPU seconds are those
of `up` and of every process that it waited for: server, mesh, agents and the learner with its warm-ups.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from typer import Option

from oven_bench.bench_command import Bench, HomeFolder, Json, home_folder, one_of, print_table, seed_list
from oven_bench.progress import progress
from oven_core.errors import ProcessError

METRIC = "eval/reward"
POLICIES = ("gaussian", "diffusion")
EMBEDDINGS = ("auto", "minilm", "words")
PICTURE = "motion.png"


@dataclass(frozen=True)
class Result:
    """One seed's. Rewards are means over the held-out intents' clips, 0 to 1."""

    seed: int
    before: float
    after: float
    best: float
    """Of the evaluations while it trained."""
    decisions: int
    """That changed something."""
    cpu_seconds: float
    picture: str
    """The file that shows it; empty where there is none."""


def result_of(seed: int, log: Sequence[str], cpu_seconds: float, picture: Path) -> Result:
    """From the lines of a run's log. Raises ProcessError for a run that was not completed."""
    entries = [json.loads(line) for line in log]
    ended = [entry["data"] for entry in entries if entry["type"] == "RunEnded"]
    if not ended or ended[-1]["reason"] != "completed":
        raise ProcessError(f"the run of seed {seed} was not completed: {ended[-1:] or 'no RunEnded'}")
    observed = [entry["data"]["metrics"] for entry in entries if entry["type"] == "Observation"]
    rewards = [metrics[METRIC] for metrics in observed if METRIC in metrics]
    if not rewards:
        raise ProcessError(f"the run of seed {seed} has no {METRIC}")
    applied = sum(entry["type"] == "Receipt" and entry["data"]["status"] == "applied" for entry in entries)
    shown = str(picture) if picture.is_file() else ""
    return Result(seed, rewards[0], rewards[-1], max(rewards), applied, round(cpu_seconds, 1), shown)


def figures(results: Sequence[Result]) -> dict[str, object]:
    """The flat object of the command contract."""
    gains = [one.after - one.before for one in results]
    return {
        "seeds": len(results),
        "up": sum(gain > 0 for gain in gains),
        "median_before": round(median(one.before for one in results), 4),
        "median_after": round(median(one.after for one in results), 4),
        "median_gain": round(median(gains), 4),
        "smallest_gain": round(min(gains), 4),
        "largest_gain": round(max(gains), 4),
        "most_cpu_seconds": max(one.cpu_seconds for one in results),
        "pictures": sum(bool(one.picture) for one in results),
    }


def run(seed: int, home: Path, options: Sequence[str]) -> Result:
    """Raises ProcessError when the stack failed: no result is made up for it."""
    name = f"motion-{seed}"
    command = [sys.executable, "-m", "oven_controller.cli.main", "up", "--headless", "--recipe", "motion"]
    command += ["--run", name, "--start", "tuned", "--seed", str(seed), *options]
    before = _cpu_seconds()
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command,
        env={**os.environ, **threads, "OVEN_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    folder = home / "runs" / name
    if done.returncode or not (folder / "log.jsonl").exists():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ProcessError(f"`up` for seed {seed} ended with code {done.returncode}:\n{tail}")
    log = (folder / "log.jsonl").read_text().splitlines()
    return result_of(seed, log, _cpu_seconds() - before, folder / PICTURE)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bench(
    seeds: Annotated[str, Option(metavar="LIST", help="Numbers and ranges.")] = "1-3",
    policy: Annotated[str, one_of(POLICIES, "What is trained, and what its teachers are.")] = "gaussian",
    embedding: Annotated[str, one_of(EMBEDDINGS, "What encodes the intents.")] = "auto",
    steps: Annotated[int | None, Option(min=1, help="Steps of each run; without it the recipe's.")] = None,
    as_json: Json = False,
    rows_file: Annotated[
        Path | None, Option("--rows", metavar="FILE", help="Write each seed's figures there, as JSON.")
    ] = None,
    home: HomeFolder = None,
) -> int:
    options = ["--set", f"recipe_options.policy={policy}", "--set", f"recipe_options.embedding={embedding}"]
    options += ["--steps", str(steps)] if steps else []
    numbers, found = seed_list(seeds), []
    with home_folder(home) as folder, progress("runs", len(numbers)) as advance:
        for seed in numbers:
            found.append(one := run(seed, folder, options))
            advance(1, f"{seed}: {one.before:.3f} → {one.after:.3f}")
    if rows_file:
        rows_file.write_text(json.dumps([vars(one) for one in found], indent=1) + "\n")
    if as_json:
        print(json.dumps(figures(found)))
    else:
        lines = [
            (f"{one.seed}", f"{one.before:.3f}", f"{one.after:.3f}", f"{one.decisions}", f"{one.cpu_seconds:.0f}")
            for one in found
        ]
        print_table(figures(found), ("seed", "before", "after", "decisions", "CPU s"), lines)
    return 0


BENCH = Bench(
    "motion",
    bench,
    "held-out reward of the recipe motion before and after, and the CPU of a run",
    "--seeds 1-3 --json --home DIR",
    "With --home the runs are kept, and motion.png lies in each run's folder.",
)
