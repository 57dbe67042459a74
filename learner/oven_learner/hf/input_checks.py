"""What TRL's on-policy trainers accept silently although it ends, or spoils, the run later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.completions.plain_text import as_text

ON_POLICY = ("GRPOTrainer", "RLOOTrainer", "DistillationTrainer")
SAMPLE = 64
"""Prompts that are tokenized to look for ids that the model does not have."""
NAMED = 5
"""Rows that a message lists."""


def check(trainer: Any) -> None:
    """Raises ConfigError for a β below 0, a tokenizer whose ids the model has no rows for, and prompts of no token.

    Prompts are looked at in datasets that can be indexed; a stream's are not known yet.
    """
    if not any(cls.__name__ in ON_POLICY for cls in type(trainer).__mro__):
        return
    if getattr(trainer, "beta", 0) < 0:
        raise ConfigError(
            f"beta is {trainer.beta:g}: below 0 the KL term rewards distance from the reference; give 0 or more"
        )
    words = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor holds one
    dataset = trainer.train_dataset
    known = hasattr(dataset, "__len__") and "prompt" in (getattr(dataset, "column_names", None) or ())
    rows = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
    if rows:  # 0: a shard of ZeRO-3
        _check_vocabulary(rows, words, dataset[: min(SAMPLE, len(dataset))]["prompt"] if known else ())
    if known:
        _check_prompts(dataset, words)


def _check_vocabulary(rows: int, words: Any, prompts: Sequence[Any]) -> None:
    """An id beyond the embedding's rows is an IndexError in the middle of a run, and on a GPU an assert that names
    nothing. One that no one uses is none: Gemma 3's smallest model lacks the row of its tokenizer's image token."""
    used = {f"its {name}": getattr(words, name + "_id") for name in ("pad_token", "eos_token", "bos_token")}
    beyond = {what: number for what, number in used.items() if number is not None and number >= rows}
    if not beyond and max(words.get_vocab().values()) >= rows:
        highest = [max(words.encode(as_text(prompt)), default=0) for prompt in prompts]
        beyond = {f"the prompt of row {row}": number for row, number in enumerate(highest) if number >= rows}
    for what, number in beyond.items():
        raise ConfigError(
            f"{what} has the token id {number:,} ({words.convert_ids_to_tokens(number)!r}), and the model embeds "
            f"{rows:,} ids; give the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
        )


def _check_prompts(dataset: Any, words: Any) -> None:
    """A prompt of no token leaves nothing to attend to: alone it ends generation, among others it is padding alone."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    column = dataset.select_columns("prompt").with_format("arrow")[:]["prompt"]
    if types.is_string(column.type) or types.is_large_string(column.type):
        empty = pc.equal(pc.binary_length(column), 0 if not words("")["input_ids"] else -1)
    elif types.is_list(column.type) or types.is_large_list(column.type):
        empty = pc.equal(pc.list_value_length(column), 0)
    else:
        return
    found = pc.indices_nonzero(pc.fill_null(empty, True)).to_pylist()
    if found:
        listed = ", ".join(map(str, found[:NAMED])) + (", …" if len(found) > NAMED else "")
        raise ConfigError(
            f"{len(found):,} of {len(dataset):,} prompts are empty (rows {listed}); leave them out, "
            'dataset.filter(lambda row: row["prompt"])'
        )
