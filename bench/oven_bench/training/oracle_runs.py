"""The runs of `bench oracle`: what one seed's arms are, and what is measured of each.

An arm is a start of the recipe, and what is done about it: `sft` is the supervised adapter as it is, `grpo` is trained
on from it, and each drill is trained twice, alone and under the real stack with the installed agents, in lockstep. All
arms of a seed share the model, the data and the order of questions; rollbacks are charged.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from oven_bench.training.absorbed_teacher import Change, applied, with_stack, without_stack
from oven_core.errors import ProcessError
from oven_core.protocol.messages import RunEnded

if TYPE_CHECKING:
    from oven_recipes.runner import Job

Arm = Literal["sft", "grpo", "constant-off", "constant-on", "overconfident-off", "overconfident-on"]
STARTS: dict[Arm, str] = {
    "sft": "tuned",
    "constant-off": "drill:constant-confidence",
    "overconfident-off": "drill:overconfident",
    "grpo": "tuned",
    "constant-on": "drill:constant-confidence",
    "overconfident-on": "drill:overconfident",
}
"""Arm → where it begins. In this order neighbours begin from different supervised adapters, so that two runs at a time
do not both make the same one."""
ARMS: tuple[Arm, ...] = tuple(STARTS)
STEPS, ITEMS = 60, 60
"""GRPO steps of a run; items of each of the nine benchmarks, at three depths, that its end is measured on."""
PROMPTS = 5
"""Held-out prompts that are asked about as well, for one item of a benchmark: 300 of 60."""
SETTINGS: dict[str, Any] = {"lockstep": True, "charge_rollbacks": True, "rules": {"autonomy": "auto"}}
"""The stack's, beside its defaults: all installed agents, with the knowledge graph."""
QUICK: dict[str, Any] = {
    "hidden": 32, "pretrain_steps": 2, "sft_steps": 2, "sft_batch": 8, "train_texts": 12, "prompts_per_step": 2,
    "num_generations": 2, "quick_items": 2, "eval_every": 100, "max_completion_length": 8,
}  # fmt: skip
"""Sizes that take seconds; what comes out says that the bench runs, and nothing else."""


class Row(BaseModel):
    """One arm of one seed, measured at its end on held-out items with greedy answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: Arm
    seed: int
    accuracy: float
    """With each text's own activations, 0 to 1; an answer that does not parse is wrong."""
    shuffled: float
    """With another text's."""
    zero: float
    """With none: the places stay as they are, as a zero vector would leave them."""
    brier: float | None
    """Of answers that parse; None where there is none."""
    ece: float | None
    unparsed: float
    """The share of answers that do not parse."""
    prompts: float
    """Right answers about held-out prompts, with each one's own activations, 0 to 1 (oracle_prompts.py)."""
    prompts_shuffled: float
    prompts_zero: float
    changes: tuple[Change, ...]
    seconds: float


def run(arm: Arm, seed: int, steps: int, items: int, home: str, quick: bool) -> Row:
    """One run, in this process. Raises ProcessError when the stack failed: no result is made up for it."""
    began = time.monotonic()
    os.environ["OVEN_HOME"] = home
    jobs: list[Job] = []
    with tempfile.TemporaryDirectory() as folder:

        def made() -> Job:
            jobs.append(prepared(arm, seed, steps, items, Path(folder), Path(home) / "cache", quick))
            return jobs[0]

        if arm == "sft":
            made()
            messages: Sequence[Any] = ()
        elif arm.endswith("-on"):
            messages = with_stack(made, SETTINGS)
            completed(arm, seed, messages)
        else:
            messages = without_stack(made())
            completed(arm, seed, messages)
        return row(arm, seed, jobs[0], items, applied(messages), began)


def completed(arm: Arm, seed: int, messages: Sequence[Any]) -> None:
    """Raises ProcessError for a run that did not end by itself, or did not wait for the stack at every tick."""
    ended = next((body for body in reversed(messages) if isinstance(body, RunEnded)), None)
    if ended is None or ended.reason != "completed" or ended.lockstep_timeouts:
        raise ProcessError(f"{arm} of seed {seed} did not complete in lockstep: {ended or 'it has no RunEnded'}")


def prepared(arm: Arm, seed: int, steps: int, items: int, folder: Path, cache: Path, quick: bool) -> Job:
    """The run, ready to be attached."""
    from oven_recipes.oracle.job import build
    from oven_recipes.oracle.settings import OracleSettings, parse_start

    given = {"max_steps": steps, "eval_items": 2, "initial_eval": False, **(QUICK if quick else {})}
    settings = OracleSettings.model_validate(given)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    return build(settings, parse_start(STARTS[arm], settings), seed, checkpoints, cache)


def row(arm: Arm, seed: int, job: Job, items: int, changes: tuple[Change, ...], began: float) -> Row:
    """Three passes over the held-out items and prompts: with the texts' own activations, with others', and with none.
    `began` is when the run did, in seconds of the monotonic clock."""
    from oven_bench.training.oracle_prompts import PromptQuestions
    from oven_recipes.oracle.evaluation import OracleEvaluation, benchmark_items

    trainer = job.trainer
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    words = trainer.args.max_completion_length
    evaluation = OracleEvaluation(
        model, tokenizer, trainer.injection, benchmark_items(None, items), max_new_tokens=words
    )
    prompts = PromptQuestions(model, tokenizer, trainer.injection, seed, items * PROMPTS, words)
    found = evaluation.run()
    own = found.overall
    return Row(
        arm=arm,
        seed=seed,
        accuracy=own.accuracy.value,
        shuffled=found.shuffled_overall.accuracy.value,
        zero=evaluation.without_activations().accuracy.value,
        brier=own.brier and own.brier.value,
        ece=own.ece and own.ece.value,
        unparsed=own.unparsed / own.count,
        prompts=prompts.own(),
        prompts_shuffled=prompts.shuffled(),
        prompts_zero=prompts.zero(),
        changes=changes,
        seconds=round(time.monotonic() - began, 1),
    )
