"""A training script for real launchers: `torchrun -m tests.support.launched_training KIND FOLDER`.

It trains alone, then attached without a change, and compares the weights. Then it trains attached until it is told to
stop. Each rank notes its settings before every step (tests.support.ranks_job.Notes).

With `--steps`, it trains only once, saves a checkpoint every SAVE_STEPS steps, and continues from the newest one. With
`--sleep-in`, rank 1 sleeps there once, so that a test can kill it there.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.support.ranks_job import Notes
from torch import distributed
from torch.distributed.tensor import DTensor

OBSERVED_STEPS = 4
"""Steps of each of the first two trainings."""
SAVE_STEPS = 4
SLEEPS = {
    "snapshot": ("oven_learner.optim.snapshot", "LoopSnapshot", "take", 2),  # the first one is before the first step
    "restore": ("oven_learner.optim.snapshot", "LoopSnapshot", "restore", 1),
    "all-reduce": ("oven_learner.optim.sharding", "Sharding", "sum", 8),  # two calls at the start, then one per step
}
"""Where rank 1 can sleep: module, class, method, and number of the call."""
Train = Callable[[int, bool, Notes | None], list[torch.Tensor]]
"""Trains for a number of steps, attached or not, and returns the whole weights. Notes are taken if there are any."""


def trainer_class(base: type[Any], *, sharded: bool) -> type[Any]:
    """Return a subclass that FSDP2 shards on CPU, or the class itself."""
    from tests.support.ranks_trainers import Sharded

    return type(base.__name__, (Sharded, base), {}) if sharded else base


def sleep_once(name: str, folder: Path) -> None:
    """Let rank 1 sleep before a call, and create a file when it does. A restarted script does not sleep again."""
    module, owner_name, method, number = SLEEPS[name]
    asleep = folder / "asleep"
    if os.environ["RANK"] != "1" or asleep.exists():
        return
    owner = getattr(importlib.import_module(module), owner_name)
    call, calls = getattr(owner, method), itertools.count(1)

    def delayed_call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            asleep.touch()
            time.sleep(3600)
        return call(*args, **kwargs)

    setattr(owner, method, delayed_call)


def train_once(folder: Path, steps: int, sharded: bool) -> None:
    """Train attached up to this step, from the newest checkpoint if there is one."""
    from tests.support.ranks_trainers import Noting, losses

    import oven_learner as oven

    output = folder / "out"
    job = build_trainer("trainer", output, steps, sharded, save_strategy="steps", save_steps=SAVE_STEPS)
    job.add_callback(Noting(Notes(folder), losses(job)))
    oven.attach(job)
    # The folder itself exists as soon as one rank has built its trainer.
    job.train(resume_from_checkpoint=any(output.glob("checkpoint-*")) or None)


def build_trainer(kind: str, folder: Path, steps: int, sharded: bool, **more: Any) -> Any:
    from tests.support.attached import tokens, trainer
    from tests.support.ranks_trainers import filled_llama
    from transformers import Trainer, set_seed

    settings: dict[str, Any] = {
        "max_steps": steps, "lr_scheduler_type": "constant", "ddp_backend": "gloo", "max_grad_norm": 0.5,
    }  # fmt: skip
    if kind == "trainer":
        cls = trainer_class(Trainer, sharded=sharded)
        return trainer(folder, cls=cls, model=filled_llama(), data=tokens(), **settings | more)
    from datasets import Dataset
    from tests.support import tiny_grpo
    from tests.unit.learner.test_attach_trl import COMMON, tokenizer
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    settings |= {"logging_steps": 10, "learning_rate": 0.01, "per_device_train_batch_size": 4}
    model = str(folder / f"policy-{os.environ['RANK']}")  # TRL loads the reference from the same place
    filled_llama().save_pretrained(model)
    if kind == "grpo":
        return tiny_grpo.grpo(folder, trainer_class(GRPOTrainer, sharded=sharded), model=model, beta=0.1, **settings)
    set_seed(3)
    common: dict[str, Any] = {"processing_class": tokenizer(), "model": model}
    settings = COMMON | {"output_dir": str(folder)} | settings
    if kind == "sft":
        rows = Dataset.from_list([{"text": text} for text in ("abcdef", "bcdefg", "cdefgh", "defghi") * 16])
        sft_args = SFTConfig(max_length=16, **settings)
        return trainer_class(SFTTrainer, sharded=sharded)(args=sft_args, train_dataset=rows, **common)
    pairs = Dataset.from_list([{"prompt": word, "chosen": "aeiou", "rejected": "xyz"} for word in "abcdefgh"] * 8)
    dpo_args = DPOConfig(beta=0.1, **settings)
    return trainer_class(DPOTrainer, sharded=sharded)(args=dpo_args, train_dataset=pairs, **common)


def with_trainer(kind: str, folder: Path, sharded: bool) -> Train:
    from tests.support.ranks_trainers import Noting, losses, whole

    import oven_learner as oven

    def train(steps: int, attached: bool, notes: Notes | None) -> list[torch.Tensor]:
        job = build_trainer(kind, folder / "out", steps, sharded)
        if notes is not None:
            job.add_callback(Noting(notes, losses(job), job))
        if attached:
            oven.attach(job)
        job.train()
        assert sharded == any(isinstance(weight, DTensor) for weight in job.model.parameters())
        return whole(job)

    return train


def with_loop(sharded: bool) -> Train:
    """Train in a loop with `oven.connect`."""
    from torch.distributed.fsdp import fully_shard

    import oven_learner as oven

    distributed.init_process_group("gloo")

    def train(steps: int, attached: bool, notes: Notes | None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        if sharded:
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.Generator().manual_seed(distributed.get_rank())
        mode = {} if attached else {"OVEN_MODE": "disabled"}
        os.environ |= mode
        with oven.connect(model=model, optimizer=optimizer, clip=0.5, max_steps=steps) as client:
            for step in range(1, steps + 1):
                x = torch.randn(4, 4, generator=data)
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                if notes is not None:
                    clip: Any = client.actuators.read("grad.clip") if attached else 0.5
                    notes.step(step, optimizer.param_groups[0]["lr"], loss.item(), clip)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                client.observe(step, {"loss": loss.item()})
                client.poll()
                if client.stopping:
                    break
        for name in mode:
            del os.environ[name]
        return [weight.full_tensor() if sharded else weight.detach() for weight in model.parameters()]

    return train


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["trainer", "sft", "dpo", "grpo", "loop"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whole", action="store_true", help="do not shard the model")
    parser.add_argument("--steps", type=int, help="train once, up to this step")
    parser.add_argument("--sleep-in", choices=SLEEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder, sharded = options.folder, not options.whole
    if options.sleep_in is not None:
        sleep_once(options.sleep_in, folder)
    if options.steps is not None:
        train_once(folder, options.steps, sharded)
    else:
        is_loop = options.kind == "loop"
        compare_and_follow(folder, with_loop(sharded) if is_loop else with_trainer(options.kind, folder, sharded))
    distributed.barrier()
    distributed.destroy_process_group()


def compare_and_follow(folder: Path, train: Train) -> None:
    notes = Notes(folder)
    alone, observed = train(OBSERVED_STEPS, False, None), train(OBSERVED_STEPS, True, None)
    is_same = len(alone) == len(observed) and all(map(torch.equal, alone, observed))
    notes.end(train(100_000, True, notes), same=is_same)


if __name__ == "__main__":
    main()
