"""Trains a byte-level BPE tokenizer on the corpus, and caches the corpus's tokens between runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_recipes.preparation import Progress
from oven_recipes.pretrain.corpus import SubCorpus
from oven_recipes.weights_cache import new_entry

VERSION = 1  # increase it when a code change would change the tokens of a corpus
END = "<|endoftext|>"  # ends each file
TOKENIZER_FILE, TOKENS_FILE, VOCABULARY_FILE = "tokenizer.json", "tokens.safetensors", "vocabulary.json"
TEXTS_PER_CALL = 16
"""Number of texts that are encoded together. It is small because an encoding needs far more memory than its ids."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of each sub-corpus in one stream, int32 [tokens]. Each file ends with `END`."""

    tokenizer: PreTrainedTokenizerFast
    train: dict[str, Tensor]
    held_out: dict[str, Tensor]
    """Held-out streams. Sub-corpora of a single file have none."""
    vocabulary_file: Path
    """JSON file with the list `token_texts`, which `kg token-prior` reads."""

    @property
    def token_texts(self) -> list[str]:
        """The tokens as strings, by id. A token that is part of a character contains the replacement character."""
        return _token_texts(self.tokenizer)

    @property
    def counts(self) -> Tensor:
        """Number of occurrences of each token in the training text, int64 [vocabulary]."""
        streams = torch.cat([stream.long() for stream in self.train.values()])
        return torch.bincount(streams, minlength=len(self.tokenizer))


class Rows(Dataset[dict[str, Tensor]]):
    """A dataset of adjacent windows of `length` tokens, without the remainder. Labels equal the tokens, because the
    model shifts them."""

    def __init__(self, stream: Tensor, length: int) -> None:
        self.tokens = stream[: len(stream) // length * length].view(-1, length)  # [rows, length]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.tokens[index].long()  # [length]
        return {"input_ids": row, "labels": row}


def tokenize(sub_corpora: Sequence[SubCorpus], vocabulary: int, cache: Path) -> Tokens:
    """Return the tokens of these texts, from the cache if possible. The tokenizer is trained without held-out text."""
    folder = cache / f"pretrain-tokens-{_key(sub_corpora, vocabulary)}"
    try:
        core, streams = Tokenizer.from_file(str(folder / TOKENIZER_FILE)), load_file(folder / TOKENS_FILE)
    except Exception:  # missing or damaged; tokenizers raises plain Exception
        Progress("training the tokenizer", len(sub_corpora), "sub-corpus").report(0)
        core = _train_tokenizer((file.text for corpus in sub_corpora for file in corpus.train), vocabulary)
        streams = {}
        for number, corpus in enumerate(sub_corpora):
            streams[f"train {number}"] = _encode(core, [file.text for file in corpus.train])
            if corpus.held_out:
                streams[f"held out {number}"] = _encode(core, [file.text for file in corpus.held_out])
        with new_entry(folder) as temporary:
            core.save(str(temporary / TOKENIZER_FILE))
            save_file(streams, temporary / TOKENS_FILE)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, pad_token=END)  # type: ignore[no-untyped-call]
    if not (folder / VOCABULARY_FILE).is_file():
        write_atomic(folder / VOCABULARY_FILE, json.dumps(_token_texts(tokenizer)))
    numbered_names = [(number, corpus.name) for number, corpus in enumerate(sub_corpora)]
    return Tokens(
        tokenizer,
        {name: streams[f"train {number}"] for number, name in numbered_names},
        {name: streams[key] for number, name in numbered_names if (key := f"held out {number}") in streams},
        folder / VOCABULARY_FILE,
    )


def split_into_rows(streams: dict[str, Tensor], length: int) -> dict[str, Rows]:
    """Split each stream into rows of `length` tokens. Raises ConfigError for a sub-corpus shorter than a row."""
    datasets = {name: Rows(stream, length) for name, stream in streams.items()}
    for name, dataset in datasets.items():
        if not len(dataset):
            raise ConfigError(
                f"the sub-corpus {name!r} has {len(streams[name]):,} tokens to train on, but a row has {length:,}; "
                "give it more text, remove its folder, or lower recipe_options.context"
            )
    return datasets


def token_byte_lengths(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return the number of text bytes per token, int64 [vocabulary], with 0 for `END`. The tokenizer's vocabulary has
    one character per byte (Radford et al. 2019, GPT-2's `bytes_to_unicode`)."""
    lengths = torch.zeros(len(tokenizer), dtype=torch.int64)
    for token, number in tokenizer.get_vocab().items():
        lengths[number] = 0 if token == END else len(token)
    return lengths


def _token_texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    return [str(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in range(len(tokenizer))]


def _key(sub_corpora: Sequence[SubCorpus], vocabulary: int) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, vocabulary]).encode())
    for corpus in sub_corpora:
        for file in (*corpus.train, None, *corpus.held_out):  # None separates training and held-out files
            digest.update(hashlib.sha256(file.text.encode() if file else b"").digest())
    return digest.hexdigest()[:16]


def _train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # all 256 bytes, so that every text can be encoded
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    return core


def _encode(core: Tokenizer, texts: Sequence[str]) -> Tensor:
    end = int(core.token_to_id(END) or 0)
    ids: list[int] = []
    progress = Progress("tokenizing", len(texts), "text")
    for start in range(0, len(texts), TEXTS_PER_CALL):
        progress.report(start)
        for encoding in core.encode_batch_fast(texts[start : start + TEXTS_PER_CALL], add_special_tokens=False):
            ids += [*encoding.ids, end]
    return torch.tensor(ids, dtype=torch.int32)
