"""A function that computes a model's logits on completions, and one that pads rows of tokens."""

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
    """Return the logits at each completion token, (B, C, V), for a bare or wrapped model. `prompt` and `completion` are
    pairs of ids and mask, with shapes (B, P) and (B, C). `weights` replace the model's weights of the same names.
    Unlike TRL's losses, this function keeps all logits in memory, which are B·C·V numbers."""
    (prompt_ids, prompt_mask), (completion_ids, completion_mask) = prompt, completion
    ids = torch.cat([prompt_ids, completion_ids], dim=1)  # (B, P + C)
    mask = torch.cat([prompt_mask, completion_mask], dim=1)
    length = completion_ids.size(1)
    bare_model = trainer.accelerator.unwrap_model(model)
    bare_model = bare_model.get_base_model() if hasattr(bare_model, "get_base_model") else bare_model
    model_inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if "logits_to_keep" in inspect.signature(bare_model.forward).parameters:  # some models compute all logits
        model_inputs["logits_to_keep"] = length + 1
    with trainer.accelerator.autocast():
        output = model(**model_inputs) if weights is None else functional_call(model, dict(weights), (), model_inputs)
    logits: Tensor = output.logits
    return logits[:, -length - 1 : -1]


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device, *, pad_left: bool = False) -> tuple[Tensor, Tensor]:
    """Return ids and mask, both (rows, longest row). Padding has the id 0, which every vocabulary contains."""
    side = "left" if pad_left else "right"
    ids = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_side=side)
    ones = [torch.ones(len(row), dtype=torch.long) for row in rows]
    return ids.to(device), pad_sequence(ones, batch_first=True, padding_side=side).to(device)
