"""Choose the form in which a teacher is kept, and move the model into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from oven_learner.teachers import memory, model_and_tokenizer, quantization
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form
from oven_learner.teachers.offload import offload


def chosen_form(config: TeacherConfig, device: torch.device, bytes_left: int, *, quantizable: bool = True) -> Form:
    """Return the form for the config's strategy. Raises TeacherRefusedError if the model cannot be found.

    For "hybrid" it depends on the free memory of `device` and on the `bytes_left` for teachers. Quantized forms are
    only considered if `quantizable`.
    """
    if config.strategy == "quantized":
        return "8 bits" if config.bits == 8 else "4 bits"
    if config.strategy != "hybrid":
        return config.strategy
    footprint = model_and_tokenizer.expected_footprint(config)
    free = memory.free_bytes(device)
    if config.model is not None:
        free += sum(tensor.nbytes for tensor in config.model.parameters() if tensor.device == device)  # there already
    room = min(bytes_left, int(memory.SHARE_OF_FREE * free))
    return memory.cheapest_needed(footprint, room, quantizable=quantizable and quantization.available())


def place_model(
    model: torch.nn.Module, device: torch.device, form: Form, folder: Path | None, *, head_stays: bool = False
) -> None:
    """Freeze `model`, and move its weights into the form. `folder` and `head_stays`: see `offload`."""
    model.eval()
    model.requires_grad_(False)
    if form == "offload":
        offload(model, device, folder, head_stays=head_stays)
    elif getattr(model, "hf_device_map", None) is None:
        model.to(device)


def as_trainer_asks(model: Any, accelerator: Any, form: Form) -> Any:
    """Return the placed model prepared for a transformers trainer.

    accelerate refuses to prepare some quantized models on a CPU; the trainer has already entered its autocast.
    """
    return accelerator.prepare_model(model, evaluation_mode=True) if form == "resident" else model
