"""Runs a recipe's training. Attaches the trainer to the controller, resumes from checkpoints, and stops on SIGTERM."""

from __future__ import annotations

import gc
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.attach import attach
from oven_learner.hf.callback import Attachment
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.rewards import Committee
from oven_learner.teachers import Teachers
from oven_recipes.recipe_interface import Recipe, TrainingRequest


def trainer_arguments(settings: Any, learning_rate: float, seed: int, workdir: Path) -> dict[str, Any]:
    """Return the trainer arguments that all recipes share. The trainer logs each step, and prints and saves nothing."""
    return {
        "output_dir": str(workdir),
        "seed": seed,
        "learning_rate": learning_rate,
        "max_steps": settings.max_steps,
        "max_grad_norm": settings.max_grad_norm,
        "bf16": False,  # weights keep the type in which they were loaded
        "gradient_checkpointing": False,  # saves memory, which small models do not need, but costs 28 % of the time
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # otherwise a NaN loss is reported as 0
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job that is ready to start. Call `attach`, then `trainer.train()`."""

    trainer: Any
    """A trainer from transformers or TRL."""
    evaluate: Callable[[], Measurements]
    """Evaluates the model on held-out data. Returns a value for each metric, or a list of values to average."""
    evaluate_every: int
    """Optimizer steps between evaluations."""
    metrics: tuple[MetricSpec, ...]
    """The recipe's own metrics. `attach` adds those of the trainer."""
    lr_bounds: tuple[float, float]
    beta_bounds: tuple[float, float] = USER_BOUNDS
    mixture: Mixture | None = None
    actuators: Actuators | None = None
    """The recipe's own knobs."""
    teachers: Teachers | None = None
    committee: Committee | None = None
    on_finish: Callable[[], None] | None = None
    """Called after the training, unless the training was stopped."""

    def __post_init__(self) -> None:
        self.trainer.remove_callback(PrinterCallback)  # prints every step when the progress bar is disabled

    def attach(self, **options: Any) -> Attachment:
        """Attach the trainer to the controller. `options` are further arguments of `oven.attach`."""
        names = {field.name for field in fields(self)} - {"trainer", "on_finish"}
        return attach(self.trainer, **{name: getattr(self, name) for name in names}, **options)


Build = Callable[[Any, Any, int, Path, Path], Job]
"""Builds a job from the settings, the start, the seed, the folder for checkpoints, and the cache's folder."""


def prepare_job(
    recipe: Recipe, build: Build, options: dict[str, Any], start: str, seed: int, folder: Path, cache: Path
) -> Job:
    """Build a recipe's job from unchecked settings and the name of a start."""
    settings = recipe.settings_model.model_validate(options)
    return build(settings, recipe.parse_start(start, seed, settings), seed, folder, cache)


def end_on_sigterm(get_client: Callable[[], OvenClient | None]) -> None:
    """On SIGTERM, ask the client to stop cleanly. If there is no client yet, end the process at once."""

    def end(number: int, _: types.FrameType | None) -> None:
        client = get_client()
        if client is None:
            sys.exit(0)
        client.request_stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, end)


def train(recipe: Recipe, request: TrainingRequest, build: Build) -> None:
    """Build the job and train to the end, or until SIGTERM."""
    attachment: Attachment | None = None
    end_on_sigterm(lambda: attachment.client if attachment is not None else None)
    options = request.options | ({"max_steps": request.steps} if request.steps else {})
    checkpoints = request.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    job = prepare_job(recipe, build, options, request.start, request.seed, checkpoints, request.cache)
    attachment = job.attach(seconds=request.seconds, recipe=recipe.name)
    attachment.resumable = True
    gc.freeze()  # collecting the objects so far would take seconds at the start of training and at exit
    job.trainer.train(resume_from_checkpoint=request.resume or None)
    if job.on_finish is not None and not (attachment.client and attachment.client.stopping):
        job.on_finish()
