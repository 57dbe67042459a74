"""How a teacher is kept: the form that its strategy comes to, and the model put into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from oven_learner.teachers import memory, model_and_tokenizer, quantization
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form
from oven_learner.teachers.offload import offload


def chosen_form(config: TeacherConfig, device: torch.device, left: int, *, quantizable: bool = True) -> Form:
    """What the strategy comes to; a hybrid one depends on the memory that is free on `device` now, and on how many
    bytes are `left` for teachers, and has its bits only where it is `quantizable`. Raises TeacherRefusedError for a
    model that cannot be found."""
    if config.strategy == "quantized":
        return "8 bits" if config.bits == 8 else "4 bits"
    if config.strategy != "hybrid":
        return config.strategy
    footprint = model_and_tokenizer.expected_footprint(config)
    free = memory.free_bytes(device)
    if config.model is not None:
        free += sum(tensor.nbytes for tensor in config.model.parameters() if tensor.device == device)  # there already
    room = min(left, int(memory.SHARE_OF_FREE * free))
    return memory.cheapest_needed(footprint, room, quantizable=quantizable and quantization.available())


def place(
    model: torch.nn.Module, device: torch.device, form: Form, folder: Path | None, *, head_stays: bool = False
) -> None:
    """Freeze `model`, and put its weights where that form has them. `folder` and `head_stays`: see `offload`."""
    model.eval()
    model.requires_grad_(False)
    if form == "offload":
        offload(model, device, folder, head_stays=head_stays)
    elif getattr(model, "hf_device_map", None) is None:
        model.to(device)


def as_trainer_asks(model: Any, accelerator: Any, form: Form) -> Any:
    """What was placed, as a transformers trainer asks it. accelerate refuses to prepare some quantized models on a CPU,
    and the trainer that asks a teacher has entered its autocast."""
    return accelerator.prepare_model(model, evaluation_mode=True) if form == "resident" else model
