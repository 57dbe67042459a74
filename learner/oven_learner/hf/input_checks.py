"""Checks a trainer's model, tokenizer and prompts for problems that would make the run fail later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.completions.plain_text import as_text
from oven_learner.trainer_internals import SAMPLING_TRAINERS, is_a

SAMPLE_ROWS = 64
"""Number of prompts to tokenize when checking for ids outside the model's vocabulary."""
MAX_LISTED_ROWS = 5
"""Maximum number of rows listed in an error message."""


def check_inputs(trainer: Any) -> None:
    """Raise ConfigError for inputs that TRL's on-policy trainers accept, but that make the run fail later. These are
    a β below 0, a tokenizer with ids that the model does not embed, and empty prompts. The prompts of a stream are not
    known in advance, so only datasets that can be indexed are checked for empty ones."""
    if not any(is_a(trainer, name) for name in SAMPLING_TRAINERS):
        return
    if getattr(trainer, "beta", 0) < 0:
        raise ConfigError(
            f"beta is {trainer.beta:g}, but below 0 the KL term rewards distance from the reference; give 0 or more"
        )
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor contains one
    dataset = trainer.train_dataset
    has_prompts = hasattr(dataset, "__len__") and "prompt" in (getattr(dataset, "column_names", None) or ())
    id_count = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
    if id_count:  # it is 0 if ZeRO-3 shards the embedding
        prompts = dataset[: min(SAMPLE_ROWS, len(dataset))]["prompt"] if has_prompts else ()
        _check_vocabulary(id_count, tokenizer, prompts)
    if has_prompts:
        _check_prompts(dataset, tokenizer)


def _check_vocabulary(id_count: int, tokenizer: Any, prompts: Sequence[Any]) -> None:
    """Raise ConfigError for token ids beyond the `id_count` that the model embeds. They would raise IndexError in the
    middle of a run, or an obscure assertion on a GPU. Unused ids are accepted, because Gemma 3's smallest model does
    not embed the image token of its tokenizer."""
    names = ("pad_token", "eos_token", "bos_token")
    ids = {f"the tokenizer's {name}": getattr(tokenizer, name + "_id") for name in names}
    invalid_ids = {
        source: token_id for source, token_id in ids.items() if token_id is not None and token_id >= id_count
    }
    if not invalid_ids and max(tokenizer.get_vocab().values()) >= id_count:
        highest_ids = [max(tokenizer.encode(as_text(prompt)), default=0) for prompt in prompts]
        invalid_ids = {
            f"the prompt of row {row}": token_id for row, token_id in enumerate(highest_ids) if token_id >= id_count
        }
    for source, token_id in invalid_ids.items():
        raise ConfigError(
            f"{source} has the token id {token_id:,} ({tokenizer.convert_ids_to_tokens(token_id)!r}), but the model "
            f"embeds only {id_count:,} ids; use the model's own tokenizer, or call "
            "model.resize_token_embeddings(len(tokenizer))"
        )


def _check_prompts(dataset: Any, tokenizer: Any) -> None:
    """Raise ConfigError for empty prompts. They make generation fail, or consist only of padding in a batch."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    column = dataset.select_columns("prompt").with_format("arrow")[:]["prompt"]
    if types.is_string(column.type) or types.is_large_string(column.type):
        adds_token = bool(tokenizer("")["input_ids"])  # then an empty string is usable
        empty = pc.is_null(column) if adds_token else pc.equal(pc.binary_length(column), 0)
    elif types.is_list(column.type) or types.is_large_list(column.type):
        empty = pc.equal(pc.list_value_length(column), 0)
    else:
        return
    empty_rows = pc.indices_nonzero(pc.fill_null(empty, True)).to_pylist()
    if empty_rows:
        row_list = ", ".join(map(str, empty_rows[:MAX_LISTED_ROWS]))
        row_list += ", …" if len(empty_rows) > MAX_LISTED_ROWS else ""
        raise ConfigError(
            f"{len(empty_rows):,} of {len(dataset):,} prompts are empty (rows {row_list}); remove them with "
            'dataset.filter(lambda row: row["prompt"])'
        )


def check_trainable(trainer: Any) -> None:
    """Raise ConfigError if no parameter of the model or the optimizer is trainable."""
    parameters = list(trainer.model.parameters())
    optimized = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    if not any(parameter.requires_grad for parameter in parameters + optimized):
        raise ConfigError(
            f"none of the model's {len(parameters)} parameters requires a gradient, so there is nothing to train: "
            "unfreeze some (parameter.requires_grad_()), or add an adapter"
        )
