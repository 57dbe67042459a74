"""Teachers whose weights wait elsewhere, by accelerate's hooks: in the CPU's memory for a GPU, on disk for a CPU.

Each layer's weights come when its turn in a pass comes, and go after it, so that an idle teacher holds nothing.
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


def offload(model: Any, device: torch.device, folder: Path | None = None, *, head_stays: bool = False) -> None:
    """Take the weights of `model` off `device`, on which it continues to be run.

    From a CPU they go to a new folder inside `folder` (None: the system's for temporary files), which is removed with
    the model, or at the latest when the process exits. `head_stays`: the output head's stay, for a loss that reads
    them outside a pass. Raises TeacherRefusedError where that cannot hold them;
    the model is as before then.
    """
    if device.type == "cpu":
        disk_offload(model, str(_written(model, folder)), execution_device=device, offload_buffers=True)
    else:
        cpu_offload(model, execution_device=device, offload_buffers=True)
    if not hasattr(model, "get_output_embeddings"):
        return  # it has no vocabulary, and no one reads a head's weights
    if head_stays:
        remove_hook_from_module(model.get_output_embeddings())
    else:
        add_hook_to_module(model, _HeadInPlace(), append=True)


class _HeadInPlace(ModelHook):  # type: ignore[misc]
    """The head's weight is there for the whole pass: TRL's fused log-probabilities read it without a call of the
    head, so that its own hook would not bring it."""

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        head = module.get_output_embeddings()
        head._hf_hook.pre_forward(head)
        return args, kwargs

    def post_forward(self, module: Any, output: Any) -> Any:
        head = module.get_output_embeddings()
        head._hf_hook.post_forward(head, None)
        return output


def _written(model: Any, folder: Path | None) -> Path:
    """The folder with the weights, in accelerate's format.

    Not written by accelerate: it writes through memory maps, where a full disk is a SIGBUS and not an OSError.
    """
    weights = model.state_dict()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    where = Path(folder or tempfile.gettempdir())
    made: Path | None = None
    try:
        where.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(where).free
        if free < needed:
            raise TeacherRefusedError(_no_room(where, needed, f"{free:,} are free"))
        made = Path(tempfile.mkdtemp(prefix="oven-teacher-", dir=where))
        index: dict[str, dict[str, Any]] = {}
        for name, tensor in weights.items():
            _write(made / f"{name}.dat", tensor)
            index[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        save_offload_index(index, str(made))
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise TeacherRefusedError(_no_room(where, needed, reason(error))) from error
    weakref.finalize(model, shutil.rmtree, made, ignore_errors=True)
    return made


def _write(path: Path, tensor: torch.Tensor) -> None:
    """The tensor's bytes; unlike numpy's `tofile`, an error of the disk keeps its number."""
    flat = tensor.detach().cpu().contiguous().flatten()
    with path.open("wb") as file:
        file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _no_room(where: Path, needed: int, why: str) -> str:
    return (
        f"its {needed:,} bytes cannot be written to {where}: {why}; make room there, or give another folder, "
        "`offload_folder=` or TMPDIR"
    )
