"""Logits of given completions, through whatever wraps the model, and lists of tokens as its input."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence


def completion_logits(
    trainer: Any,
    model: Any,
    prompt: tuple[Tensor, Tensor],
    completion: tuple[Tensor, Tensor],
    weights: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """(B, C, V): what `model` expects at each token of the completions. Each pair is ids and mask, (B, P) and (B, C).
    `weights` stand in for the model's own of those names.

    They are materialised, unlike in TRL's own losses: B·C·V numbers for each model that is asked.
    """
    ids, mask = (torch.cat(parts, dim=1) for parts in zip(prompt, completion, strict=True))  # (B, P + C)
    kept = completion[0].size(1)
    bare = trainer.accelerator.unwrap_model(model)
    bare = bare.get_base_model() if hasattr(bare, "get_base_model") else bare
    # Not all models can leave out the prompt's logits.
    only = {"logits_to_keep": kept + 1} if "logits_to_keep" in inspect.signature(bare.forward).parameters else {}
    with trainer.accelerator.autocast():
        asked = {"input_ids": ids, "attention_mask": mask, "use_cache": False, **only}
        answer = model(**asked) if weights is None else functional_call(model, dict(weights), (), asked)
    logits: Tensor = answer.logits
    return logits[:, -kept - 1 : -1]


def padded(rows: Sequence[Sequence[int]], device: torch.device, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids and mask, (rows, the longest's length). What pads has the id 0, which every vocabulary has."""
    side = "left" if left else "right"
    ids = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_side=side)
    ones = [torch.ones(len(row), dtype=torch.long) for row in rows]
    return ids.to(device), pad_sequence(ones, batch_first=True, padding_side=side).to(device)
