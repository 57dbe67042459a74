"""One run of a recipe: under a fixed rule in this process, or under the whole stack as `up` starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from oven_controller.errors import ProcessError
from oven_learner.link.bus_link import Link

METRIC = {"grpo": "eval/accuracy", "pretrain": "eval/bits_per_byte"}
"""Recipe → what is held out."""
HELD_OUT = {"grpo": ("eval_prompts", 512), "pretrain": ("eval_rows", 256)}
"""Recipe → its setting of how much of that; more than its own, since it is the end that is measured."""


@dataclass(frozen=True)
class Episode:
    """What is to be run. Plain values: it travels to a worker process."""

    arm: str
    start: str
    seed: int
    steps: int
    home: str
    factor: float = 1.0
    """Of the blind schedule."""
    label: str = ""
    """Tells runs of one start and seed apart."""
    options: tuple[tuple[str, object], ...] = ()
    """More of the recipe's settings."""
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


def run(episode: Episode) -> Result:
    """Raises ProcessError when the stack failed: no result is made up for it."""
    started = time.monotonic()
    final, interventions = (_stack if episode.arm == "swarm" else _ruled)(episode)
    return Result(episode, final, interventions, time.monotonic() - started)


def _ruled(episode: Episode) -> tuple[float, int]:
    from oven_bench.fixed_rules import Alone, Blind, Plateau, PlateauOfLoss, Rule, RuleLink

    plateau = {"grpo": Plateau, "pretrain": PlateauOfLoss}[episode.recipe]
    rules: dict[str, Rule] = {"blind": Blind(episode.factor), "plateau": plateau()}
    link = RuleLink(rules.get(episode.arm, Alone()))
    with tempfile.TemporaryDirectory() as folder:
        {"grpo": _grpo, "pretrain": _pretrain}[episode.recipe](episode, link, Path(folder))
    return link.last_metrics[METRIC[episode.recipe]], len(link.changes)


def _grpo(episode: Episode, link: Link, folder: Path) -> None:
    from oven_learner.hf.attach import attach
    from oven_learner.recipes.grpo.job import build
    from oven_learner.recipes.grpo.settings import GrpoSettings
    from oven_learner.recipes.grpo.starts import parse_start
    from oven_learner.recipes.grpo.train import BETA_BOUNDS, LR_BOUNDS, gauges

    settings = GrpoSettings.model_validate({"max_steps": episode.steps, **episode.settings})
    start = parse_start(episode.start, episode.seed, settings.levels)
    job = build(settings, start, episode.seed, folder, Path(episode.home) / "cache")
    attach(
        job.trainer,
        link=link,
        charge_rollbacks=True,
        mixture=job.mixture,
        lr_bounds=LR_BOUNDS,
        metrics=gauges(settings),
        evaluate=job.evaluate,
        evaluate_every=settings.eval_every,
        teachers=job.teachers,
        beta_bounds=BETA_BOUNDS,
        committee=job.committee,
    )
    job.trainer.train()


def _pretrain(episode: Episode, link: Link, folder: Path) -> None:
    from oven_learner.hf.attach import attach
    from oven_learner.recipes.pretrain.job import build
    from oven_learner.recipes.pretrain.settings import PretrainSettings
    from oven_learner.recipes.pretrain.starts import parse_start
    from oven_learner.recipes.pretrain.train import LR_BOUNDS, gauges

    settings = PretrainSettings.model_validate({"max_steps": episode.steps, **episode.settings})
    start = parse_start(episode.start, episode.seed)
    job = build(settings, start, episode.seed, folder, Path(episode.home) / "cache")
    attach(
        job.trainer,
        link=link,
        charge_rollbacks=True,
        mixture=job.mixture,
        lr_bounds=LR_BOUNDS,
        metrics=gauges(job.held_out),
        evaluate=job.evaluate,
        evaluate_every=settings.eval_every,
    )
    job.trainer.train()


def up_command(episode: Episode, run: str) -> list[str]:
    """The `up` command for an episode, with the run's name. The caller sets OVEN_HOME."""
    command = [sys.executable, "-m", "oven_controller.cli.main", "up", "--headless", "--set", "charge_rollbacks=true"]
    command += ["--run", run, "--recipe", episode.recipe, "--start", episode.start]
    command += ["--seed", str(episode.seed), "--steps", str(episode.steps)]
    for key, value in episode.settings.items():
        command += ["--set", f"recipe_options.{key}={value}"]
    return command


def _stack(episode: Episode) -> tuple[float, int]:
    name = f"{episode.label or episode.start.replace(':', '-')}-{episode.seed}"
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
