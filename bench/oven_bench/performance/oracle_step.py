"""`bench oracle-step`: what activations cost in a training step, beside plain GRPO on the same prompts.

Two trainers in one process train the same small oracle, an adapter on the model that is made on the spot, on the same
prompts with the same reward: one puts activations in wherever it runs the policy or its reference; the other is TRL's
GRPOTrainer, to which the placeholders are tokens like others. They take turns, a block of steps each, in an order that
changes by turns. Every answer has as many tokens as fit, so both do the same work; a block's first steps do not count.

`ratio` is wall time per step with activations over without, `cpu_ratio` that of the process's CPU time, which other
processes on the machine do not stretch. Intervals are 95 % percentile bootstraps over rounds (Efron & Tibshirani 1993).
Left out: capturing the activations, which is done once and before; evaluation; and the controller.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.performance.overhead import slowdown
from oven_bench.statistics import Interval
from oven_core.errors import ConfigError

SETTLE = 2
"""Steps at the beginning of a block that are not counted."""
LEAST = 2
"""Rounds; one has no interval."""
TEXTS = 64
"""Whose activations the questions are asked of: more than a block has steps."""


def measure(rounds: int, block: int, options: dict[str, Any]) -> dict[str, Any]:
    """The object of `--json`. `options` are settings of the recipe."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arms = _arms(Path(folder), SETTLE + block, options)
        wall: dict[str, list[list[float]]] = {name: [] for name in arms}
        cpu: dict[str, list[list[float]]] = {name: [] for name in arms}
        for number in range(rounds):
            for name in sorted(arms, reverse=bool(number % 2)):
                steps = _block(arms[name])
                wall[name].append([one for one, _ in steps])
                cpu[name].append([one for _, one in steps])
    return {
        **_ratio("ratio", slowdown(wall["activations"], wall["plain"])),
        **_ratio("cpu_ratio", slowdown(cpu["activations"], cpu["plain"])),
        **{f"{name}_step_ms": round(1e3 * fmean(_flat(wall[name])), 1) for name in sorted(arms)},
        **{f"{name}_cpu_ms": round(1e3 * fmean(_flat(cpu[name])), 1) for name in sorted(arms)},
        "steps_each": rounds * block,
        "load": round(os.getloadavg()[0], 2),
    }


def _arms(folder: Path, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    """Both trainers, each with its own model of the same weights."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl.trainer.grpo_trainer import GRPOTrainer

    from oven_recipes.activations.blocks import layer_at
    from oven_recipes.activations.grpo_trainer import ActivationGRPOTrainer
    from oven_recipes.activations.store import ActivationStore
    from oven_recipes.oracle.given_model import fresh_adapter
    from oven_recipes.oracle.job import captured, grpo_arguments, training_rows
    from oven_recipes.oracle.model import Sizes, build_model, build_tokenizer
    from oven_recipes.oracle.settings import OracleSettings
    from oven_recipes.oracle.template_questions import template_dataset
    from oven_recipes.quiet_libraries import quiet_libraries

    quiet_libraries()
    settings = OracleSettings.model_validate({**options, "max_steps": steps})
    tokenizer = build_tokenizer()
    store = ActivationStore(folder / "activations")
    prompts = template_dataset(seed=1, count=TEXTS)
    arms: dict[str, Any] = {}
    kinds: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("activations", ActivationGRPOTrainer, {"store": store}),
        ("plain", GRPOTrainer, {}),
    )
    for name, cls, more in kinds:
        torch.manual_seed(1)
        base = build_model(Sizes(), tokenizer)
        layers = [layer_at(base, percent) for percent in settings.layer_percents]
        captured(base, tokenizer, "bench", [one.prompt for one in prompts], layers, settings.most_activations, store)
        args = grpo_arguments(settings, settings.lr, 1, folder / name)
        args.generation_kwargs = {"min_new_tokens": settings.max_completion_length}
        arms[name] = cls(
            model=fresh_adapter(base, settings.lora_rank),
            processing_class=tokenizer,
            reward_funcs=[_words],
            args=args,
            train_dataset=Dataset.from_list(training_rows(tokenizer, "bench", prompts, layers, store, seed=1)),
            **more,
        )
        arms[name].remove_callback(PrinterCallback)
    return arms


def _words(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A reward that costs nothing and differs from answer to answer."""
    return [float(len(set(text.split()))) for text in completions]


def _block(trainer: Any) -> list[tuple[float, float]]:
    """Seconds of wall and of CPU of each counted step of a block."""
    from transformers import TrainerCallback

    steps: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.append((time.perf_counter() - self.began[0], time.process_time() - self.began[1]))

    clock = Clock()
    trainer.add_callback(clock)
    try:
        trainer.train()
    finally:
        trainer.remove_callback(clock)
    return steps[SETTLE:]


def _flat(blocks: Sequence[Sequence[float]]) -> list[float]:
    return [one for block in blocks for one in block]


def _ratio(name: str, found: Interval) -> dict[str, float]:
    return {name: round(found.mean, 3), f"{name}_low": round(found.low, 3), f"{name}_high": round(found.high, 3)}


def bench(
    rounds: Annotated[int, Option(min=LEAST, help="Blocks of each arm.")] = 12,
    block: Annotated[int, Option(min=1, help="Counted steps of a block.")] = 6,
    prompts: Annotated[int | None, Option(min=1, help="Questions in a step; without it the recipe's.")] = None,
    as_json: Json = False,
) -> int:
    if block + SETTLE > TEXTS:
        raise ConfigError(f"--block {block}: at most {TEXTS - SETTLE}, so that no question is asked twice in a block")
    print_object(measure(rounds, block, {"prompts_per_step": prompts} if prompts else {}), as_json)
    return 0


BENCH = Bench(
    "oracle-step",
    bench,
    "a training step of the recipe oracle beside plain GRPO on the same prompts: wall and CPU time",
    "--rounds 12 --json",
)
