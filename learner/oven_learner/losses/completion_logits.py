"""Compute a model's logits on completions, and pad lists of tokens."""

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
    """Return the logits at each completion token, (B, C, V), for a bare or wrapped model.

    `prompt` and `completion` are pairs of ids and mask, (B, P) and (B, C). `weights` replace the model's own weights of
    the same names. Unlike in TRL's losses, the logits are materialised: B·C·V numbers per model.
    """
    ids, mask = (torch.cat(parts, dim=1) for parts in zip(prompt, completion, strict=True))  # (B, P + C)
    length = completion[0].size(1)
    bare = trainer.accelerator.unwrap_model(model)
    bare = bare.get_base_model() if hasattr(bare, "get_base_model") else bare
    # Some models cannot omit the prompt's logits.
    only = {"logits_to_keep": length + 1} if "logits_to_keep" in inspect.signature(bare.forward).parameters else {}
    with trainer.accelerator.autocast():
        model_inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False, **only}
        answer = model(**model_inputs) if weights is None else functional_call(model, dict(weights), (), model_inputs)
    logits: Tensor = answer.logits
    return logits[:, -length - 1 : -1]


def padded(rows: Sequence[Sequence[int]], device: torch.device, *, pad_left: bool = False) -> tuple[Tensor, Tensor]:
    """Return ids and mask, (rows, longest row). Padding has the id 0, which every vocabulary has."""
    side = "left" if pad_left else "right"
    ids = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_side=side)
    ones = [torch.ones(len(row), dtype=torch.long) for row in rows]
    return ids.to(device), pad_sequence(ones, batch_first=True, padding_side=side).to(device)
