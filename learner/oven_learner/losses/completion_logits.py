"""Logits of given completions, through whatever wraps the model."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor


def completion_logits(
    trainer: Any, model: Any, prompt: tuple[Tensor, Tensor], completion: tuple[Tensor, Tensor]
) -> Tensor:
    """(B, C, V): what `model` expects at each token of the completions. Each pair is ids and mask, (B, P) and (B, C).

    They are materialised, unlike in TRL's own losses: B·C·V numbers for each model that is asked.
    """
    ids, mask = (torch.cat(parts, dim=1) for parts in zip(prompt, completion, strict=True))  # (B, P + C)
    kept = completion[0].size(1)
    bare = trainer.accelerator.unwrap_model(model)
    bare = bare.get_base_model() if hasattr(bare, "get_base_model") else bare
    # Not all models can leave out the prompt's logits.
    only = {"logits_to_keep": kept + 1} if "logits_to_keep" in inspect.signature(bare.forward).parameters else {}
    with trainer.accelerator.autocast():
        logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False, **only).logits
    return logits[:, -kept - 1 : -1]
