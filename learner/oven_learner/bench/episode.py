"""One run of the grpo recipe: under a fixed rule in this process, or under the whole stack as `up` starts it."""

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

ACCURACY = "eval/accuracy"
EVAL_PROMPTS = 512
"""Held-out prompts per level: four times the recipe's own, since it is the end that is measured."""


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


@dataclass(frozen=True)
class Result:
    episode: Episode
    accuracy: float
    """Held-out, greedy, mean over levels, at the end: 0 to 1."""
    interventions: int
    seconds: float


def run(episode: Episode) -> Result:
    """Raises ProcessError when the stack failed: no result is made up for it."""
    started = time.monotonic()
    accuracy, interventions = (_stack if episode.arm == "swarm" else _ruled)(episode)
    return Result(episode, accuracy, interventions, time.monotonic() - started)


def _ruled(episode: Episode) -> tuple[float, int]:
    from oven_learner.attachment import attach
    from oven_learner.bench.rules import Alone, Blind, Plateau, Rule, RuleLink
    from oven_learner.recipes.grpo.job import build
    from oven_learner.recipes.grpo.settings import GrpoSettings
    from oven_learner.recipes.grpo.starts import parse_start
    from oven_learner.recipes.grpo.train import BETA_BOUNDS, LR_BOUNDS, gauges

    rules: dict[str, Rule] = {"blind": Blind(episode.factor), "plateau": Plateau()}
    rule = rules.get(episode.arm, Alone())
    settings = GrpoSettings.model_validate(
        {"max_steps": episode.steps, "eval_prompts": EVAL_PROMPTS, **dict(episode.options)}
    )
    link = RuleLink(rule)
    with tempfile.TemporaryDirectory() as folder:
        start = parse_start(episode.start, episode.seed, settings.levels)
        job = build(settings, start, episode.seed, Path(folder), Path(episode.home) / "cache")
        attach(
            job.trainer,
            link=link,
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
    return link.last_metrics[ACCURACY], len(link.changes)


def _stack(episode: Episode) -> tuple[float, int]:
    name = f"{episode.label or episode.start.replace(':', '-')}-{episode.seed}"
    command = [
        sys.executable,
        "-m",
        "oven_controller.cli.main",
        "up",
        "--headless",
        "--set",
        "lockstep=true",
        "--run",
        name,
    ]
    command += ["--start", episode.start, "--seed", str(episode.seed), "--steps", str(episode.steps)]
    for key, value in (("eval_prompts", EVAL_PROMPTS), *episode.options):
        command += ["--set", f"recipe_options.{key}={value}"]
    done = subprocess.run(
        command,
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
    return float(ended[-1]["metrics"][ACCURACY]), len(applied)
