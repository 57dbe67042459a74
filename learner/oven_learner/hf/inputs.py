"""What TRL's on-policy trainers take without a word and what ends, or quietly spoils, the run later."""

from __future__ import annotations

from typing import Any

from oven_controller.errors import ConfigError

ON_POLICY = ("GRPOTrainer", "RLOOTrainer", "DistillationTrainer")
NAMED = 5
"""Rows that a message lists."""


def check(trainer: Any) -> None:
    """Raises ConfigError for a β below 0, a tokenizer that knows more tokens than the model, and prompts of no token.

    Prompts are looked at in datasets that can be indexed; a stream's are not known yet.
    """
    if not any(cls.__name__ in ON_POLICY for cls in type(trainer).__mro__):
        return
    if getattr(trainer, "beta", 0) < 0:
        raise ConfigError(
            f"beta is {trainer.beta:g}: below 0 the KL term rewards distance from the reference; give 0 or more"
        )
    words = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor holds one
    _check_vocabulary(trainer, words)
    _check_prompts(trainer.train_dataset, words)


def _check_vocabulary(trainer: Any, words: Any) -> None:
    """An id beyond the embedding's rows is an IndexError in the middle of a run, and on a GPU an assert that names
    nothing."""
    rows = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
    token, highest = max(words.get_vocab().items(), key=lambda entry: entry[1])
    if 0 < rows <= highest:  # 0: a shard of ZeRO-3
        raise ConfigError(
            f"the tokenizer has an id {highest:,} ({token!r}), and the model embeds {rows:,} ids; give the model's own "
            f"tokenizer, or model.resize_token_embeddings({highest + 1})"
        )


def _check_prompts(dataset: Any, words: Any) -> None:
    """A prompt of no token leaves nothing to attend to: alone it ends generation, among others it is padding alone."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    if not hasattr(dataset, "__len__") or "prompt" not in (getattr(dataset, "column_names", None) or ()):
        return
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
