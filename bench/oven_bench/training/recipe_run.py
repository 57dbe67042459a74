"""Runs of a recipe, under a fixed rule in this process or under the whole stack as `up` starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oven_bench.study import run_tasks
from oven_core import plugins
from oven_core.errors import ProcessError
from oven_learner.link.link_interface import Link

METRIC = {"grpo": "eval/accuracy", "pretrain": "eval/bits_per_byte"}
"""Recipe → its held-out metric."""
HELD_OUT = {"grpo": ("eval_prompts", 512), "pretrain": ("eval_rows", 256)}
"""Recipe → its setting for the size of the held-out set, larger than by default because the end is measured."""

QUICK: tuple[tuple[str, object], ...] = (
    ("lengths", [1, 2]), ("train_prompts", 20), ("hidden", 16), ("layers", 1), ("heads", 2), ("ffn", 32),
    ("sft_steps", 60), ("sft_batch", 16), ("sft_learning_rate", 1e-2), ("prompts_per_step", 4), ("group_size", 4),
    ("eval_every", 2),
)  # fmt: skip
"""Settings of the GRPO recipe that take seconds, to check that a bench runs."""


@dataclass(frozen=True)
class Episode:
    """One run. Plain values: they travel to a worker process."""

    arm: str
    start: str
    seed: int
    steps: int
    home: str
    factor: float = 1.0
    """The blind schedule's factor."""
    options: tuple[tuple[str, object], ...] = ()
    """More settings of the recipe."""
    recipe: str = "grpo"

    @property
    def settings(self) -> dict[str, object]:
        return dict((HELD_OUT[self.recipe], *self.options))


@dataclass(frozen=True)
class Result:
    episode: Episode
    final: float
    """The held-out metric at the end: accuracy (greedy, mean over levels, 0 to 1), or bits per byte."""
    interventions: int
    seconds: float

    def line(self) -> str:
        return f"{self.episode.arm}, seed {self.episode.seed}: {self.final:.3f}"


def run_all(episodes: Sequence[Episode], jobs: int) -> list[Result]:
    """Results in the order in which the episodes end."""
    return list(run_tasks(run, episodes, jobs, describe=Result.line))


def by_seed(results: Sequence[Result]) -> dict[int, dict[str, Result]]:
    """Seed → arm → result, in the order of the seeds."""
    draws: dict[int, dict[str, Result]] = {}
    for result in sorted(results, key=lambda result: result.episode.seed):
        draws.setdefault(result.episode.seed, {})[result.episode.arm] = result
    return draws


def run(episode: Episode) -> Result:
    """Run an episode. Raises ProcessError if the stack failed."""
    started = time.monotonic()
    final, interventions = (_stack if episode.arm == "swarm" else _ruled)(episode)
    return Result(episode, final, interventions, time.monotonic() - started)


def _ruled(episode: Episode) -> tuple[float, int]:
    from oven_bench.fixed_rules import Alone, Blind, Plateau, PlateauOfLoss, Rule, RuleLink

    plateau = {"grpo": Plateau, "pretrain": PlateauOfLoss}[episode.recipe]
    rules: dict[str, Rule] = {"blind": Blind(episode.factor), "plateau": plateau()}
    link = RuleLink(rules.get(episode.arm, Alone()))
    with tempfile.TemporaryDirectory() as folder:
        _train(episode, link, Path(folder))
    return link.last_metrics[METRIC[episode.recipe]], len(link.changes)


def _train(episode: Episode, link: Link, folder: Path) -> None:
    from oven_recipes.grpo.training_job import build as build_grpo
    from oven_recipes.pretrain.training_job import build as build_pretrain
    from oven_recipes.training_runner import Build, prepare_job

    recipe = plugins.load("recipes", "recipe", episode.recipe)
    builds: dict[str, Build] = {"grpo": build_grpo, "pretrain": build_pretrain}
    options = {"max_steps": episode.steps, **episode.settings}
    job = prepare_job(
        recipe, builds[episode.recipe], options, episode.start, episode.seed, folder, Path(episode.home) / "cache"
    )
    job.attach(link=link, charge_rollbacks=True)
    job.trainer.train()


def up_command(episode: Episode, run: str) -> list[str]:
    """The `up` command for an episode. The caller sets OVEN_HOME."""
    command = [sys.executable, "-m", "oven_controller.cli.main", "up", "--headless", "--set", "charge_rollbacks=true"]
    command += ["--run", run, "--recipe", episode.recipe, "--start", episode.start]
    command += ["--seed", str(episode.seed), "--steps", str(episode.steps)]
    for key, value in episode.settings.items():
        command += ["--set", f"recipe_options.{key}={value}"]
    return command


def _stack(episode: Episode) -> tuple[float, int]:
    name = f"{episode.start.replace(':', '-')}-{episode.seed}"
    done = subprocess.run(
        [*up_command(episode, name), "--set", "lockstep=true"],
        env={**os.environ, "OVEN_HOME": episode.home},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    log = Path(episode.home) / "runs" / name / "log.jsonl"
    if done.returncode or not log.exists():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ProcessError(f"`up` for {episode} ended with code {done.returncode}:\n{tail}")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [entry["data"] for entry in entries if entry["type"] == "RunEnded"]
    if not ended or ended[-1]["reason"] != "completed" or ended[-1]["lockstep_timeouts"]:
        raise ProcessError(f"{episode} did not complete in lockstep: {ended[-1:] or 'no RunEnded'}")
    applied = [e for e in entries if e["type"] == "Receipt" and e["data"]["status"] == "applied"]
    return float(ended[-1]["metrics"][METRIC[episode.recipe]]), len(applied)
