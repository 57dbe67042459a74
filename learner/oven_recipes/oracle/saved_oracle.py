"""Saves and loads oracles. The folder of a saved oracle contains:

oracle.json                                      a record of its training
adapter_config.json, adapter_model.safetensors   its adapter, in peft's format
model/                                           its model and tokenizer, unless the record names the user's model
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_learner.rollback.checkpoint_record import all_checkpoints, find_defect
from oven_recipes.activations.capture import MAX_TOKENS
from oven_recipes.oracle.evaluation import DEPTHS
from oven_recipes.oracle.user_model import load_adapter, load_model

ORACLE_FOLDER, MODEL_FOLDER = "oracle", "model"
RECORD_FILE, ADAPTER_FILE = "oracle.json", "adapter_config.json"


class TrainingRecord(BaseModel):
    """The content of oracle.json: the settings with which an oracle was trained, and with which it is evaluated."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str = Field(default="", description="hub id or folder of its model; empty: the folder `model` next to it")
    layer_percents: tuple[float, ...] = Field(default=DEPTHS, min_length=1)
    most_activations: int = Field(default=MAX_TOKENS, ge=1, le=MAX_TOKENS)
    max_completion_length: int = Field(default=64, ge=1)
    step: int = Field(default=0, ge=0, description="steps of GRPO so far")


class SavedOracle(NamedTuple):
    """An oracle that was loaded from `path`."""

    model: Any
    tokenizer: Any
    record: TrainingRecord
    path: Path


def save_oracle(policy: Any, tokenizer: Any, run: Path, record: TrainingRecord) -> Path:
    """Save an oracle in the subfolder `oracle` of a run's folder, and return this subfolder. `policy` is a PeftModel
    with the adapter `default`. The model below the adapter is also saved, once per run, unless `record` names it."""
    folder = run / ORACLE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if not record.model and not (folder / MODEL_FOLDER).is_dir():
        with policy.disable_adapter():
            _save_base(policy, tokenizer, folder / MODEL_FOLDER)
    policy.save_pretrained(folder, selected_adapters=["default"])
    write_atomic(folder / RECORD_FILE, record.model_dump_json())
    return folder


def load_oracle(path: Path) -> SavedOracle:
    """Load the newest oracle at `path`, which may be a run's folder, one of its checkpoints, a folder from
    `save_oracle`, or a peft adapter. Raises ConfigError if there is no oracle, or if it cannot be loaded."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; use a run's folder, or one with an oracle's adapter")
    if (path / ORACLE_FOLDER / RECORD_FILE).is_file():
        return _load_from_run(path)
    run = path.parent.parent  # if `path` is a checkpoint
    if (path / ADAPTER_FILE).is_file() and (run / ORACLE_FOLDER / RECORD_FILE).is_file():
        return _load(path, _read_record(run / ORACLE_FOLDER), run / ORACLE_FOLDER)
    if (path / RECORD_FILE).is_file():
        return _load(path, _read_record(path), path)
    if (path / ADAPTER_FILE).is_file():
        return _load(path, TrainingRecord(model=_base_model_name(path)), path)
    raise ConfigError(
        f"{path} contains no oracle: neither {ORACLE_FOLDER}/{RECORD_FILE}, which a run of the recipe oracle writes "
        f"after its supervised stage, nor {ADAPTER_FILE}; use another run or folder"
    )


def _load_from_run(run: Path) -> SavedOracle:
    """Return the last saved oracle or the newest complete checkpoint, whichever is newer."""
    folder = run / ORACLE_FOLDER
    record, saved_at = _read_record(folder), (folder / RECORD_FILE).stat().st_mtime
    checkpoints = [
        checkpoint
        for checkpoint in all_checkpoints(run / "checkpoints")
        if not find_defect(checkpoint)
        and (checkpoint / ADAPTER_FILE).is_file()
        and (checkpoint / ADAPTER_FILE).stat().st_mtime > saved_at
    ]
    return _load(checkpoints[-1] if checkpoints else folder, record, folder)


def _load(adapter: Path, record: TrainingRecord, folder: Path) -> SavedOracle:
    name = record.model or str(folder / MODEL_FOLDER)
    if not record.model and not (folder / MODEL_FOLDER).is_dir():
        raise ConfigError(
            f"{folder}: {RECORD_FILE} names no model, and the folder {MODEL_FOLDER} is missing; copy it there"
        )
    model, tokenizer = load_model(name, "auto")
    policy = load_adapter(model, name, str(adapter))
    policy.eval()
    return SavedOracle(policy, tokenizer, record, adapter)


def _read_record(folder: Path) -> TrainingRecord:
    try:
        return TrainingRecord.model_validate_json((folder / RECORD_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"cannot read {folder / RECORD_FILE}: {reason(error)}; use another run or folder") from error


def _base_model_name(adapter: Path) -> str:
    try:
        name = PeftConfig.from_pretrained(str(adapter)).base_model_name_or_path
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"cannot read {adapter / ADAPTER_FILE}: {reason(error)}; use another folder") from error
    if not name:
        raise ConfigError(
            f"{adapter / ADAPTER_FILE} names no model; set base_model_name_or_path to the model's folder or hub id"
        )
    return str(name)


def _save_base(policy: Any, tokenizer: Any, folder: Path) -> None:
    """Save the model without its adapters, and with the weight names that it had before peft wrapped its layers."""
    base = policy.get_base_model()
    weights = {
        name.replace(".base_layer.", "."): value
        for name, value in base.state_dict().items()
        if ".lora_" not in name and "modules_to_save" not in name
    }
    base.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
