"""The oracle's prompt and its places, with a tokenizer of words and with one of bytes, in a chat and without."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from oven_core.errors import ConfigError
from oven_recipes.activations.placeholders import Placeholders, oracle_prompt

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(chat: bool = False, begins: bool = False) -> PreTrainedTokenizerFast:
    """Byte-pair encoding that splits as Qwen's does, trained until ` ?` is a token."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = Sequence([Split(Regex(QWEN), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=ByteLevel.alphabet())
    made.train_from_iterator(["user assistant Layer: 12\n ? ? ? \nIs it so ? And this ?"] * 9, trainer)
    words = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", add_bos_token=begins
    )
    words.chat_template = CHAT if chat else None
    return words


WORDS, CHATTING = byte_level(), byte_level(chat=True)
PLACES, PLACES_IN_CHAT = Placeholders(WORDS), Placeholders(CHATTING)


def test_the_prompt_is_that_of_activation_oracles() -> None:
    assert oracle_prompt(9, 3, "Is it so?") == "Layer: 9\n ? ? ? \nIs it so?"
    chat = oracle_prompt(9, 1, "So?", CHATTING)
    assert chat == "<s><|im_start|>user\nLayer: 9\n ? \nSo?<|im_end|>\n<|im_start|>assistant\n"


@given(
    st.integers(0, 200), st.integers(1, 20), st.text(st.sampled_from("ab ?\nLayer: 1"), min_size=1), st.integers(0, 9)
)
def test_placeholder_positions_are_located_for_any_question(
    layer: int, count: int, question: str, padding: int
) -> None:
    if not question.strip():
        return
    for places, words in ((PLACES, WORDS), (PLACES_IN_CHAT, CHATTING)):
        ids = words(oracle_prompt(layer, count, question, words))["input_ids"]
        answer = words(" ? Layer: 3\n ? ?")["input_ids"]
        span = places.find([0] * padding + ids + answer + [0] * padding)
        assert span is not None
        assert (span.layer, span.stop - span.start) == (layer, count)
        assert [*ids, 0][span.start - padding : span.stop - padding] == [places.token_id] * count
        assert str(words.decode(ids[span.stop - padding :])).startswith(" \n")


@pytest.mark.parametrize("text", ["is it ? ?", " ? ?", "Layer: 3 ? so", "Layer:\n ? so", "Layer\n3\n ?"])
def test_other_texts_have_no_places(text: str) -> None:
    assert PLACES.find(WORDS(text)["input_ids"]) is None
    assert PLACES.find([]) is None


def test_a_tokenizer_without_the_placeholder_is_refused() -> None:
    class Splitting:
        unk_token_id, pad_token_id, chat_template = None, 0, None

        def __call__(self, text: str, **_: Any) -> Any:
            return {"input_ids": [ord(letter) for letter in text]}

    with pytest.raises(ConfigError, match=r"must be one separate token.*add_tokens"):
        Placeholders(Splitting())
