"""One arm of `bench step`: a process that trains with TRL's GRPOTrainer, plain or attached, when it is its turn.

Model, prompts, seed and TRL's settings are the same for both, so they do the same work, token for token, as long as
nothing is decided. The plain arm has the reward as a function. The other one has it in a committee, and calls
`oven.attach(trainer)`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from oven_bench.performance.on_cpu_clock import OnCpu

Size = Literal["recipe", "tiny", "0.5b", "1.5b"]
Device = Literal["cpu", "cuda"]
Dtype = Literal["f32", "bf16"]


@dataclass(frozen=True)
class Order:
    """What to train. Plain values: they travel to the process. `environment` is that of an attached script; it is empty
    for the plain arm."""

    cache: str
    size: Size = "recipe"
    device: Device = "cpu"
    dtype: Dtype = "f32"
    prompts: int = 32
    group: int = 8
    completion: int = 7
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Sums over the counted steps of one turn. Tokens are those of prompts and completions, by TRL's count."""

    wall_s: float
    on_cpu_s: float
    tokens: int


_SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = {
    "tiny": {"vocab_size": 512, **dict(zip(_SHAPE, (32, 64, 1, 2, 1), strict=True))},
    # As in Qwen2.5-0.5B.
    "0.5b": {"vocab_size": 151_936, **dict(zip(_SHAPE, (896, 4864, 24, 14, 2), strict=True))},
    # As in Qwen2.5-1.5B.
    "1.5b": {"vocab_size": 151_936, **dict(zip(_SHAPE, (1536, 8960, 28, 12, 2), strict=True))},
}
"""Size of a Qwen2 with random weights → its shape."""


def work(pipe: Connection, order: Order) -> None:
    """The process. It sends its number of parameters when it is ready. Then it replies to each (settling, counted) with
    a Block, until it receives None."""
    os.environ.update(order.environment)
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    import torch

    torch.set_num_threads(order.threads)
    trainer = _trainer(order)
    with OnCpu() as clock:
        turns = _turns(pipe, clock, torch.cuda.synchronize if order.device == "cuda" else lambda: None)
        trainer.add_callback(turns)  # after the callback of `attach`, so that a step includes its work
        trainer.train()


def _trainer(order: Order) -> Any:
    from oven_learner.hf.attach import attach
    from oven_learner.rewards import Committee
    from oven_recipes.grpo.settings import GrpoSettings
    from oven_recipes.grpo.sorting_task import RULES, WEIGHTS, exact_match
    from oven_recipes.grpo.training_job import recipe_metrics

    committee = Committee(RULES, weights=WEIGHTS) if order.environment else None
    trainer = build_trainer(order, committee or exact_match)
    if committee is not None:
        committee.group_size = order.group
        attach(trainer, recipe="bench", metrics=recipe_metrics(GrpoSettings()), committee=committee)
    return trainer


def build_trainer(order: Order, reward: Any, attention: str = "sdpa", **settings: Any) -> Any:
    """Build a GRPOTrainer for the order's model on the prompts of the sorting task. `attention` is transformers' name
    of the implementation for random weights, and `settings` replace those of the GRPOConfig."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback, set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from oven_recipes.grpo.settings import TUNED_LEARNING_RATE, GrpoSettings
    from oven_recipes.grpo.sorting_policy import build_tokenizer, warm_policy
    from oven_recipes.grpo.sorting_task import draw_pool
    from oven_recipes.quiet_libraries import quiet_libraries

    quiet_libraries()
    recipe, tokenizer = GrpoSettings(), build_tokenizer()
    prompts = random.Random("prompts of bench step")
    rows = [row for length in recipe.lengths for row in draw_pool(length, recipe.train_prompts, prompts)]
    set_seed(1)
    if order.size == "recipe":
        model: Any = warm_policy(recipe, tokenizer, 1, Path(order.cache))
    else:
        model = random_model(order.size, order.device, order.dtype, attention, eos=tokenizer.eos_token_id,
                             pad=tokenizer.pad_token_id)  # fmt: skip
    defaults: dict[str, Any] = {
        "output_dir": str(Path(order.cache) / "unused"),
        "seed": 1,
        "learning_rate": TUNED_LEARNING_RATE if order.size == "recipe" else 1e-6,
        "lr_scheduler_type": "constant",
        "max_steps": 1_000_000,  # it ends on request
        "per_device_train_batch_size": order.prompts * order.group,
        "num_generations": order.group,
        "max_completion_length": order.completion,
        "bf16": order.dtype == "bf16",
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": order.device == "cpu",
    }
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[reward],
        train_dataset=Dataset.from_list([vars(row) for row in rows]),
        args=GRPOConfig(**(defaults | settings)),
    )
    trainer.remove_callback(PrinterCallback)
    assert isinstance(trainer.model, torch.nn.Module)
    return trainer


def random_model(
    size: Size, device: Device, dtype: Dtype, attention: str = "sdpa", *, eos: int | None = None, pad: int | None = None
) -> Any:
    """Build a Qwen2 with random weights. They are drawn on the device, because a CPU takes many seconds for them."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {**SIZES[size], "bos_token_id": None, "eos_token_id": eos, "pad_token_id": pad}
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **settings))
    model.set_attn_implementation(attention)
    return model.to(torch.bfloat16 if dtype == "bf16" else torch.float32)


def _turns(pipe: Connection, clock: OnCpu, settle: Callable[[], None]) -> Any:
    """The callback that lets the trainer continue for the requested steps."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            pipe.send(sum(parameter.numel() for parameter in model.parameters()))
            self._wait(state, control)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.settling:
                self.settling -= 1
                if not self.settling:
                    self._begin(state)
                return
            self.counted -= 1
            if self.counted:
                return
            settle()
            wall, waited = time.perf_counter() - self.start, (clock.waited_ns() - self.waited) / 1e9
            pipe.send(Block(wall, wall - waited, int(state.num_input_tokens_seen - self.tokens)))
            self._wait(state, control)

        def _wait(self, state: Any, control: Any) -> None:
            request = pipe.recv()
            if request is None:
                control.should_training_stop = True
                self.settling = 1
                return
            self.settling, self.counted = request

        def _begin(self, state: Any) -> None:
            settle()
            self.tokens = state.num_input_tokens_seen
            self.start, self.waited = time.perf_counter(), clock.waited_ns()

    return Turns()
