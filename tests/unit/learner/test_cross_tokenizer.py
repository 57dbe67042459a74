"""The channel `distill` from a teacher that cuts text otherwise: the same text is compared, and nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, llama
from tests.support.tiny_grpo import batch, gradient, grpo
from tests.unit.learner.test_teachers import teacher
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, set_seed

from oven_learner.losses import ChannelTrainer, Distillation
from oven_learner.losses.distillation import CrossTokenizer
from oven_learner.teachers import TeacherConfig

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
LETTERS = "abcdefghijklmnopqrstuvwxyz012"
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


def letters(order: str = LETTERS) -> Any:
    """One token for each letter, with ids by their order; 32 in all."""
    made = Tokenizer(WordLevel({word: n for n, word in enumerate([*SPECIAL.values(), *order])}, unk_token="<pad>"))
    made.pre_tokenizer = Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)  # type: ignore[no-untyped-call]


def pairs() -> Any:
    """Letters, and some pairs of them that are one token."""
    words = [*SPECIAL.values(), *LETTERS, *(first + second for first in "abcdefgh" for second in "abcdefgh")]
    made = Tokenizer(
        BPE(
            {word: n for n, word in enumerate(words)},
            [(first, second) for first in "abcdefgh" for second in "abcdefgh"],
        )
    )
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)  # type: ignore[no-untyped-call]


def renamed(model: Any, old: Any, new: Any) -> Any:
    """The same model for a tokenizer that gives the same tokens other ids."""
    made = copy.deepcopy(model).eval()
    ids, others = old.get_vocab(), new.get_vocab()
    with torch.no_grad():
        for token, index in ids.items():
            for mine, theirs in zip(
                (made.get_input_embeddings(), made.get_output_embeddings()),
                (model.get_input_embeddings(), model.get_output_embeddings()),
                strict=True,
            ):
                mine.weight[others[token]] = theirs.weight[index]
    return made


def channelled(folder: Path, weight: float = 1.0, **options: Any) -> Any:
    channel = Distillation(weight, **options)
    return grpo(folder, ChannelTrainer, channels=[channel], processing_class=letters(), lr_scheduler_type="constant")


def test_the_same_model_with_permuted_ids_has_distance_0(tmp_path: Path) -> None:
    set_seed(3)
    policy = llama()  # as the trainer's, which is made from that seed
    teacher_tokenizer = letters(LETTERS[::-1])
    job = channelled(tmp_path, teacher=renamed(policy, letters(), teacher_tokenizer), tokenizer=teacher_tokenizer)
    inputs = batch(job)
    ids = inputs["completion_ids"]  # special tokens amid the text are the policy's alone: the teacher reads text
    inputs["completion_ids"] = ids.where((ids > 2) | (inputs["completion_mask"] == 0), 5)
    total, count, _ = job.channels[0].tally(job.model, inputs)
    assert int(count) == int(inputs["completion_mask"].sum())
    assert float(total.detach()) == pytest.approx(0, abs=1e-5)
    assert gradient(job, inputs).norm() < 1e-4

    swapped = channelled(tmp_path / "as it is", teacher=copy.deepcopy(policy), tokenizer=teacher_tokenizer)
    far, *_ = swapped.channels[0].tally(swapped.model, batch(swapped))
    assert float(far.detach()) > 1e-3, "the ids mean other letters, and the model is not renamed"


def test_longer_tokens_are_compared_with_the_text_that_they_cover(tmp_path: Path) -> None:
    job = channelled(tmp_path, teacher=teacher(11, vocabulary=96), tokenizer=pairs())
    inputs = batch(job)
    actual = gradient(job, inputs)
    assert actual.norm() > 1e-4 and bool(torch.isfinite(actual).all())
    job.channels[0].set_weight(0.0)
    assert not gradient(job, inputs).any()


def test_the_policy_comes_closer_to_the_teacher(tmp_path: Path) -> None:
    teacher_tokenizer = letters(LETTERS[::-1])
    job = channelled(tmp_path, 1.0, teacher=TeacherConfig(name="t", model=teacher(12, width=32), strategy="offload"),
                     tokenizer=teacher_tokenizer)  # fmt: skip
    inputs = batch(job)
    optimizer = torch.optim.Adam(job.model.parameters(), lr=0.02)
    values = []
    for _ in range(15):
        total, count, _ = job.channels[0].tally(job.model, inputs)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        values.append(float(total.detach() / count))
    assert values[-1] < 0.5 * values[0] and min(values) >= 0


@given(st.text(alphabet="abcdefgh", min_size=1, max_size=12))
def test_texts_are_cut_where_both_tokenizers_end_a_token(text: str) -> None:
    across = CrossTokenizer(letters(), pairs(), beta=0.5, temperature=1.0, device=torch.device("cpu"))
    written, places, ends = across.decode([*letters()(text)["input_ids"], 2])
    assert (written, places, ends) == (text, list(range(len(text))), list(range(1, len(text) + 1)))
    tokens, theirs = across.tokenize(text)
    assert theirs[-1] == len(text) and len(tokens) == len(theirs)
    assert theirs == [sum(len(pairs().decode([token])) for token in tokens[: n + 1]) for n in range(len(tokens))]
