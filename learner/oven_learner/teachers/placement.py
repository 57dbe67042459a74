"""Choose the form in which a teacher is kept, and move the model into it.

Offloaded weights wait in CPU memory for a GPU, or on disk for a CPU, using accelerate's hooks. Each layer's weights are
loaded for its turn in a pass and dropped afterwards, so that an idle teacher uses no memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelerate.utils.offload import save_offload_index

from oven_core.errors import TeacherRefusedError, reason
from oven_learner.teachers import memory, model_and_tokenizer, quantization
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form


def offload(model: Any, device: torch.device, folder: Path | None = None, *, head_stays: bool = False) -> None:
    """Move the weights of `model` off `device`, where it still runs.

    On a CPU they go to a new folder inside `folder` (None: the system's folder for temporary files). The folder is
    deleted with the model, or at exit. `head_stays` keeps the output head in place, for a loss that reads its weights
    outside a pass. Raises TeacherRefusedError if the disk cannot hold them; the model is then unchanged.
    """
    if device.type == "cpu":
        disk_offload(model, str(_written(model, folder)), execution_device=device, offload_buffers=True)
    else:
        cpu_offload(model, execution_device=device, offload_buffers=True)
    if not hasattr(model, "get_output_embeddings"):
        return  # no vocabulary, so nothing reads a head's weights
    if head_stays:
        remove_hook_from_module(model.get_output_embeddings())
    else:
        add_hook_to_module(model, _HeadInPlace(), append=True)


class _HeadInPlace(ModelHook):  # type: ignore[misc]
    """Keeps the head's weight loaded for the whole pass.

    TRL's fused log-probabilities read the weight without calling the head, so the head's own hook would not load it.
    """

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        head = module.get_output_embeddings()
        head._hf_hook.pre_forward(head)
        return args, kwargs

    def post_forward(self, module: Any, output: Any) -> Any:
        head = module.get_output_embeddings()
        head._hf_hook.post_forward(head, None)
        return output


def _written(model: Any, folder: Path | None) -> Path:
    """Write the weights in accelerate's format, and return the folder.

    accelerate itself writes through memory maps, where a full disk causes a SIGBUS instead of an OSError.
    """
    weights = model.state_dict()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    where = Path(folder or tempfile.gettempdir())
    target: Path | None = None
    try:
        where.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(where).free
        if free < needed:
            raise TeacherRefusedError(_too_large(where, needed, f"{free:,} are free"))
        target = Path(tempfile.mkdtemp(prefix="oven-teacher-", dir=where))
        index: dict[str, dict[str, Any]] = {}
        for name, tensor in weights.items():
            _write(target / f"{name}.dat", tensor)
            index[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        save_offload_index(index, str(target))
    except OSError as error:
        if target is not None:
            shutil.rmtree(target, ignore_errors=True)
        raise TeacherRefusedError(_too_large(where, needed, reason(error))) from error
    weakref.finalize(model, shutil.rmtree, target, ignore_errors=True)
    return target


def _write(path: Path, tensor: torch.Tensor) -> None:
    """Write the tensor's bytes. Unlike numpy's `tofile`, this keeps the error number of a disk error."""
    flat = tensor.detach().cpu().contiguous().flatten()
    with path.open("wb") as file:
        file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _too_large(where: Path, needed: int, why: str) -> str:
    return (
        f"its {needed:,} bytes cannot be written to {where}: {why}; free some space, or use another folder, "
        "`offload_folder=` or TMPDIR"
    )


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
