"""Vectors for texts: which lie near each other, and what is said where the sentence encoder is missing."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from tests.support.attached import THIRD_PARTY

from oven_core.errors import ConfigError
from oven_learner.policies import TextEncoder, text_encoder

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

TEXTS = ["wave hello", "dance excitedly", "wave goodbye", "walk slowly to the left", "walk slowly to the right"]


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoder, "MINILM_PACKAGE", "no_such_package_of_vectors")
    text_encoder._warn_about_words.cache_clear()  # noqa: SLF001


def test_texts_that_share_words_lie_near_each_other_and_any_other_text_has_a_vector() -> None:
    encode = TextEncoder(TEXTS, "words")
    hello, dance, bye, leftwards, right = encode(TEXTS)
    assert encode(TEXTS).shape == (5, encode.dim)
    assert (hello - bye).norm() < (hello - dance).norm() and (leftwards - right).norm() < (leftwards - dance).norm()
    new = encode(["Jump, twice!"])
    assert torch.equal(new, encode(["jump twice"])) and not torch.equal(new[0], hello)
    assert torch.equal(encode(TEXTS[3:])[0], leftwards), "whatever it is encoded with"
    assert torch.equal(copy.deepcopy(encode)(TEXTS)[1], dance)


@pytest.mark.usefixtures("not_installed")
def test_a_missing_sentence_encoder_is_asked_for_by_its_extra_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r'pip install "oven-controller\[motion\]"'):
        TextEncoder(TEXTS, "minilm")
    with caplog.at_level(logging.WARNING):
        assert [TextEncoder(TEXTS).kind for _ in range(2)] == ["words", "words"]
        TextEncoder(TEXTS, "words")
    assert [record.getMessage() for record in caplog.records] == [
        'strings are encoded word by word; to use a sentence encoder, run: pip install "oven-controller[motion]"'
    ]
