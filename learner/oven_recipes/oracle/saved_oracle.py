"""Saves and loads oracles. A saved oracle has an adapter in peft's format, a record of its training, and its model.

oracle/oracle.json   oracle/adapter_config.json, adapter_model.safetensors
oracle/model/        the model and its tokenizer, unless the record names a hub id or a folder of the user
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_learner.rollback.checkpoint_record import all_checkpoints, defect
from oven_recipes.activations.capture import MAX_TOKENS
from oven_recipes.oracle.evaluation import DEPTHS
from oven_recipes.oracle.user_model import load_adapter, load_model

FOLDER, RECORD, MODEL = "oracle", "oracle.json", "model"
ADAPTER = "adapter_config.json"


class TrainingRecord(BaseModel):
    """The content of oracle.json: how an oracle was trained. Evaluations and questions use the same settings."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str = Field(default="", description="hub id or folder of its model; empty: the folder `model` next to it")
    layer_percents: tuple[float, ...] = Field(default=DEPTHS, min_length=1)
    most_activations: int = Field(default=MAX_TOKENS, ge=1, le=MAX_TOKENS)
    max_completion_length: int = Field(default=64, ge=1)
    step: int = Field(default=0, ge=0, description="steps of GRPO so far")


class SavedOracle(NamedTuple):
    """An oracle loaded from `path`."""

    model: Any
    tokenizer: Any
    record: TrainingRecord
    path: Path


def save_oracle(policy: Any, tokenizer: Any, run: Path, record: TrainingRecord) -> Path:
    """Write the folder `oracle` in a run's folder, replacing its contents, and return it. `policy` is a PeftModel with
    the adapter `default`. The model is saved too if `record` does not name one."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if not record.model and not (folder / MODEL).is_dir():
        with policy.disable_adapter():
            _save_base(policy, tokenizer, folder / MODEL)
    policy.save_pretrained(folder, selected_adapters=["default"])
    write_atomic(folder / RECORD, record.model_dump_json())
    return folder


def load_oracle(path: Path) -> SavedOracle:
    """Load the newest oracle at `path`: a run's folder, one of its checkpoints, a folder from `save_oracle`, or a peft
    adapter. Raises ConfigError if there is none, or if it cannot be loaded."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; use a run's folder, or one with an oracle's adapter")
    if (path / FOLDER / RECORD).is_file():
        return _load_from_run(path)
    run = path.parent.parent
    if (path / ADAPTER).is_file() and (run / FOLDER / RECORD).is_file():
        return _load(path, _read_record(run / FOLDER), run / FOLDER)
    if (path / RECORD).is_file():
        return _load(path, _read_record(path), path)
    if (path / ADAPTER).is_file():
        return _load(path, TrainingRecord(model=_model_of(path)), path)
    raise ConfigError(
        f"{path} contains no oracle: neither {FOLDER}/{RECORD}, which a run of the recipe oracle writes after its "
        f"supervised stage, nor {ADAPTER}; use another run or folder"
    )


def _load_from_run(run: Path) -> SavedOracle:
    """Return the last saved oracle or the newest complete checkpoint, whichever is newer."""
    record, saved_at = _read_record(run / FOLDER), (run / FOLDER / RECORD).stat().st_mtime
    checkpoints = [
        checkpoint
        for checkpoint in all_checkpoints(run / "checkpoints")
        if not defect(checkpoint)
        and (checkpoint / ADAPTER).is_file()
        and (checkpoint / ADAPTER).stat().st_mtime > saved_at
    ]
    return _load(checkpoints[-1] if checkpoints else run / FOLDER, record, run / FOLDER)


def _load(adapter: Path, record: TrainingRecord, folder: Path) -> SavedOracle:
    name = record.model or str(folder / MODEL)
    if not record.model and not (folder / MODEL).is_dir():
        raise ConfigError(f"{folder}: {RECORD} names no model, and the folder {MODEL} is missing; copy it there")
    model, tokenizer = load_model(name, "auto")
    policy = load_adapter(model, name, str(adapter))
    policy.eval()
    return SavedOracle(policy, tokenizer, record, adapter)


def _read_record(folder: Path) -> TrainingRecord:
    try:
        return TrainingRecord.model_validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"cannot read {folder / RECORD}: {reason(error)}; use another run or folder") from error


def _model_of(adapter: Path) -> str:
    try:
        name = PeftConfig.from_pretrained(str(adapter)).base_model_name_or_path
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"cannot read {adapter / ADAPTER}: {reason(error)}; use another folder") from error
    if not name:
        raise ConfigError(
            f"{adapter / ADAPTER} does not name its model; set base_model_name_or_path to the model's folder or hub id"
        )
    return str(name)


def _save_base(policy: Any, tokenizer: Any, folder: Path) -> None:
    """Save the model without adapters, with the original names of the layers that peft has wrapped."""
    base = policy.get_base_model()
    weights = {
        name.replace(".base_layer.", "."): value
        for name, value in base.state_dict().items()
        if ".lora_" not in name and "modules_to_save" not in name
    }
    base.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
