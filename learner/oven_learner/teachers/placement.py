"""Loads a teacher's model and tokenizer, chooses its form in memory, and converts the model to this form. Offloaded
weights are stored in CPU memory for a GPU, or on disk for a CPU, using accelerate's hooks. A layer's weights are loaded
when a forward pass reaches the layer and dropped afterwards, so an idle teacher uses no memory on the device."""

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

from oven_core.errors import ConfigError, TeacherRefusedError, reason
from oven_learner import trainer_internals
from oven_learner.teachers import memory_forms
from oven_learner.teachers.memory_forms import BITS, Footprint, Form
from oven_learner.teachers.teacher_config import TeacherConfig


def load_model(config: TeacherConfig, form: Form, device: torch.device, *, during_training: bool = False) -> Any:
    """Load the model on the CPU, in the dtype of its file, or quantize it on `device` while it is loaded. A model that
    the config contains is returned unchanged. Raises TeacherRefusedError if loading fails, and ConfigError for a
    diffusion teacher, which cannot score tokens.

    Pass `during_training=True` if another thread may be training. transformers sets the default dtype of the whole
    process while it creates a model, which would disturb a training step. With `during_training`, the model is created
    in the current default dtype and converted afterwards, which temporarily needs more memory."""
    if config.kind == "diffusion":
        raise ConfigError(
            f"teacher {config.name!r} is a diffusion model, but this trainer's policy generates tokens; use a causal "
            "language model of the kind 'small' or 'big'"
        )
    if config.model is not None:
        return config.model
    from transformers import AutoModelForCausalLM

    file_dtype, default_dtype = _load_config(config).dtype or torch.float32, torch.get_default_dtype()
    options: dict[str, Any] = {"dtype": default_dtype if during_training else "auto"}
    if form in BITS:
        quantization_config = memory_forms.bitsandbytes_config(BITS[form], file_dtype)
        options |= {"quantization_config": quantization_config, "device_map": {"": device}}
    try:
        model = AutoModelForCausalLM.from_pretrained(str(config.model_name), **options)
    except Exception as error:
        raise _make_load_error(config, error) from error
    if during_training and file_dtype != default_dtype:
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(file_dtype)
        model.config.dtype = file_dtype
    return model


def load_tokenizer(config: TeacherConfig) -> Any:
    """Return the config's tokenizer, or the one in the model's folder, or None. Raises TeacherRefusedError on
    failure."""
    if config.tokenizer is not None and not isinstance(config.tokenizer, str | os.PathLike):
        return config.tokenizer
    source = config.tokenizer or config.model_name
    if source is None:
        return None
    from transformers import AutoTokenizer

    folder = Path(source)
    if config.tokenizer is None and folder.is_dir() and not any(folder.glob("tokenizer*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise TeacherRefusedError(
            f"its tokenizer cannot be loaded from {str(source)!r}: {reason(error)}; pass one as `tokenizer`"
        ) from error


def expected_footprint(config: TeacherConfig) -> Footprint:
    """Return the model's sizes without loading it. Raises TeacherRefusedError if there is no such model."""
    if config.model is not None:
        return memory_forms.measure_footprint(config.model)
    from transformers import AutoModelForCausalLM

    model_config = _load_config(config)
    with torch.device("meta"):  # in the current default dtype, as in `load_model`
        from_config = AutoModelForCausalLM.from_config
        empty_model = from_config(model_config, dtype=torch.get_default_dtype())  # type: ignore[no-untyped-call]
    return memory_forms.measure_footprint(empty_model.to(model_config.dtype or torch.float32))


def _load_config(config: TeacherConfig) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(config.model_name))
    except Exception as error:
        raise _make_load_error(config, error) from error


def _make_load_error(config: TeacherConfig, error: Exception) -> TeacherRefusedError:
    name = str(config.model_name)
    is_path = os.sep in name.strip(".") and name.startswith((os.sep, ".", "~"))
    problem = f"it cannot be loaded from {name!r}: {reason(error)[:300]}"
    if is_path and not Path(name).is_dir():
        problem = f"there is no folder {name!r}"
    return TeacherRefusedError(f"{problem}; use a folder written by `save_pretrained`")


def offload(model: Any, device: torch.device, folder: Path | None = None, *, keep_head: bool = False) -> None:
    """Move the weights of `model` away from `device`. The model still runs on `device`. For a CPU, the weights are
    written to a new folder inside `folder`, or inside the system's folder for temporary files. The new folder is
    deleted with the model, or at exit. `keep_head` keeps the output head in place, for a loss that reads its weights
    outside a forward pass. Raises TeacherRefusedError if the disk is full. The model is then unchanged."""
    if device.type == "cpu":
        disk_offload(model, str(_write_weights(model, folder)), execution_device=device, offload_buffers=True)
    else:
        cpu_offload(model, execution_device=device, offload_buffers=True)
    if not hasattr(model, "get_output_embeddings"):
        return  # without a vocabulary there is no head
    if keep_head:
        remove_hook_from_module(model.get_output_embeddings())
    else:
        add_hook_to_module(model, _KeepHeadLoaded(), append=True)


class _KeepHeadLoaded(ModelHook):  # type: ignore[misc]
    """A hook that keeps the head's weight loaded during the whole forward pass. TRL's fused log-probabilities read the
    weight without calling the head, so the head's own hook would not load it."""

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        head = module.get_output_embeddings()
        trainer_internals.offload_hook(head).pre_forward(head)
        return args, kwargs

    def post_forward(self, module: Any, output: Any) -> Any:
        head = module.get_output_embeddings()
        trainer_internals.offload_hook(head).post_forward(head, None)
        return output


def _write_weights(model: Any, folder: Path | None) -> Path:
    """Write the weights in accelerate's format, and return the folder. accelerate itself writes to memory maps, where a
    full disk causes a SIGBUS instead of an OSError."""
    weights = model.state_dict()
    needed_bytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    parent = Path(folder or tempfile.gettempdir())
    target: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(parent).free
        if free_bytes < needed_bytes:
            raise OSError(f"only {free_bytes:,} bytes are free")
        target = Path(tempfile.mkdtemp(prefix="oven-teacher-", dir=parent))
        index: dict[str, dict[str, Any]] = {}
        for name, tensor in weights.items():
            _write_tensor(target / f"{name}.dat", tensor)
            index[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        save_offload_index(index, str(target))
    except OSError as error:
        if target is not None:
            shutil.rmtree(target, ignore_errors=True)
        raise TeacherRefusedError(
            f"its {needed_bytes:,} bytes cannot be written to {parent}: {reason(error)}; free some space, or choose "
            "another folder with `offload_folder=` or TMPDIR"
        ) from error
    weakref.finalize(model, shutil.rmtree, target, ignore_errors=True)
    return target


def _write_tensor(path: Path, tensor: torch.Tensor) -> None:
    """Write the tensor's bytes. Unlike numpy's `tofile`, this preserves the error number of a disk error."""
    flat = tensor.detach().cpu().contiguous().flatten()
    with path.open("wb") as file:
        file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def choose_form(config: TeacherConfig, device: torch.device, bytes_left: int, *, quantizable: bool = True) -> Form:
    """Return the form for the config's strategy. Raises TeacherRefusedError if the model cannot be found. For "hybrid"
    the form depends on the free memory of `device`, and on `bytes_left` of the limit for teachers."""
    if config.strategy == "quantized":
        return "8 bits" if config.bits == 8 else "4 bits"
    if config.strategy != "hybrid":
        return config.strategy
    footprint = expected_footprint(config)
    free_bytes = memory_forms.free_bytes(device)
    if config.model is not None:
        # A model that is already on the device needs no additional memory.
        free_bytes += sum(tensor.nbytes for tensor in config.model.parameters() if tensor.device == device)
    available_bytes = min(bytes_left, int(memory_forms.MAX_FREE_SHARE * free_bytes))
    return memory_forms.fastest_fitting_form(
        footprint, available_bytes, quantizable=quantizable and memory_forms.can_quantize()
    )


def place_model(
    model: torch.nn.Module, device: torch.device, form: Form, folder: Path | None, *, keep_head: bool = False
) -> None:
    """Freeze `model`, and convert its weights to the form. `folder` and `keep_head` are explained in `offload`."""
    model.eval()
    model.requires_grad_(False)
    if form in BITS:
        memory_forms.quantize(model, BITS[form], device)
    if form == "offload":
        offload(model, device, folder, keep_head=keep_head)
    elif getattr(model, "hf_device_map", None) is None:
        model.to(device)
    memory_forms.release_freed_memory()


def prepare_for_trainer(model: Any, accelerator: Any, form: Form) -> Any:
    """Return the placed model, prepared by accelerate for the trainer if it is resident. accelerate rejects some
    quantized models on a CPU. They do not need it, because the trainer enters autocast itself."""
    return accelerator.prepare_model(model, evaluation_mode=True) if form == "resident" else model
