"""For the workers of ranks_job: GRPO with a channel whose work differs by rank."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from tests.support.tiny_grpo import ROWS, grpo

from oven_learner.losses import ChannelTrainer, Hints, SelfDistillation

HINTED = 4
"""Prompts of a step that have feedback, the first ones: with eight, and four completions of each, rank 0 has them all.
"""


class InOrder(ChannelTrainer):
    """A trainer that reads its prompts in the order of the data set."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


def trained(folder: Path, steps: int) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Train and return the weights and what this rank's channel saw."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    feedback = [
        row | {"feedback": "no"} if index < HINTED else row | {"feedback": None} for index, row in enumerate(ROWS)
    ]
    rows = [row for row in feedback for _ in range(4)]  # as a sampler of groups would repeat them
    channel = SelfDistillation(0.5, hints=Hints(sibling=False), topk=8)
    job = grpo(
        folder / "out", InOrder, channels=[channel], rows=rows * steps, max_steps=steps, logging_steps=1,
        per_device_train_batch_size=16, num_generations=4, ddp_backend="gloo", lr_scheduler_type="constant",
    )  # fmt: skip
    job.model.config.max_position_embeddings = 512  # a hint has some length
    hinted: list[int] = []
    tally = channel.tally

    def counted(model: Any, inputs: dict[str, Any]) -> Any:
        hinted.append(sum(tokens is not None for tokens in inputs["oven_hinted"]))
        return tally(model, inputs)

    channel.tally = counted  # type: ignore[method-assign]
    job.train()
    logged = [entry for entry in job.state.log_history if "channel/sdpo" in entry]
    return list(job.model.parameters()), {
        "hinted": hinted,
        "shares": [entry["channel/sdpo/hinted"] for entry in logged],
    }
