"""The small model that is made on the spot: a Llama with eight blocks and a million parameters, and its word
tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import chain
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from oven_recipes.activations.placeholders import PLACEHOLDER
from oven_recipes.oracle.benchmark_items import words as benchmark_words
from oven_recipes.oracle.words import ABSENT, ATTRIBUTES, WORDS
from oven_recipes.small_models import small_llama

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
LAYER, STATUS = "Layer:", "[epistemic status:"
"""What opens an oracle's prompt and its answer: a token each, as they stand."""
MARKS = ("\n", "?", ".", ":", ",", "!", "]", PLACEHOLDER)
CONTEXT = 160
"""Positions: twice the longest row of the pre-training."""


class Sizes(NamedTuple):
    """Sizes of the model. With the vocabulary of about 700 words, the default has 0.95 million parameters."""

    hidden: int = 96
    ffn: int = 256
    layers: int = 8
    heads: int = 4


SIZES = Sizes()


@cache
def vocabulary() -> tuple[str, ...]:
    """Return the words of the offline prompts and questions and of the benchmark templates, and the numbers up to
    100."""
    texts: Iterable[str] = chain(
        *(
            (*attribute.values, *attribute.values.values(), *attribute.open, *attribute.closed)
            for attribute in ATTRIBUTES.values()
        ),
        *(words for _, words in (*WORDS.topics.values(), *WORDS.feelings.values(), *WORDS.greetings.values())),
        *WORDS.manners.values(),
        *WORDS.times.values(),
        (ABSENT, "is about the feels because of the"),
        benchmark_words(),
    )
    words = {word for text in texts for word in text.replace("?", "").replace("{}", "").split()}
    return tuple(sorted(word for word in words if word.isalpha())) + tuple(str(n) for n in range(101))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per word, in lower case and with the space before it. Punctuation marks and line
    ends are separate tokens."""
    tokens = (PAD, EOS, UNKNOWN, *MARKS, *(f" {word}" for word in vocabulary()))
    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=UNKNOWN))
    core.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r" +\n"), "\n"),
            normalizers.Replace(Regex(r"\n *(?=\w)"), "\n "),
            normalizers.Replace(Regex(r"\A *(?=\w)"), " "),
        ]
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[\p{L}']+| ?\p{N}+| \?|\n|[^\s\p{L}\p{N}]|\s"), "isolated")
    core.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex(r"(?<=\n) (?=\w)"), "")])
    core.add_tokens([AddedToken(LAYER, normalized=False), AddedToken(STATUS, normalized=False)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(sizes: Sizes, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised model."""
    return small_llama(sizes, tokenizer, CONTEXT)
