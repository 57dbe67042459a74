"""Answers compared with the teacher's own, by sentence vectors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, llama
from tests.unit.learner.test_attach_trl import tokenizer

from oven_learner.rewards.draft_verifier import DraftVerifier, TeacherDrafts

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def letters(texts: Sequence[str]) -> torch.Tensor:
    """How often a text has each of a, b and c, of length 1."""
    counts = torch.tensor([[float(text.count(letter)) for letter in "abc"] for text in texts])
    return torch.nn.functional.normalize(counts, dim=-1)


def test_an_answer_scores_by_its_overlap_with_the_draft() -> None:
    verifier = DraftVerifier(letters)
    assert verifier(["p", "q"], ["a", "b"]) == [None, None], "no teacher yet"
    verifier.get_drafts = lambda prompts: ["aab", "c", " "]
    scores = verifier(["p", "q", "r"], ["aab", "ab", "a"], answer=["not read"])
    assert scores == [pytest.approx(1.0), pytest.approx(0.5), None]
    assert (
        verifier(["p", "q", "r"], [[{"role": "assistant", "content": text}] for text in ("aab", "ab", "a")]) == scores
    )


def test_drafts_are_the_active_teachers_own_and_made_once() -> None:
    words = tokenizer()
    teachers: dict[str, Any] = {"small": llama(), "big": llama()}
    with torch.no_grad():
        for parameter in teachers["big"].parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    active, batch_sizes = ["small"], [0]

    class Counted:
        def __init__(self, model: Any) -> None:
            self._model = model

        def generate(self, **inputs: Any) -> Any:
            batch_sizes.append(len(inputs["input_ids"]))
            return self._model.generate(**inputs)

    drafts = TeacherDrafts(
        lambda: nullcontext((active[0], Counted(teachers[active[0]]))), words, torch.device("cpu"), max_tokens=4
    )
    before = torch.get_rng_state()
    first = drafts(["ab", "c", "ab"])
    assert torch.equal(torch.get_rng_state(), before)
    assert first[0] == first[2] and batch_sizes == [0, 2], "once for each prompt"
    assert drafts(["c", "ab"]) == [first[1], first[0]] and batch_sizes == [0, 2]
    active[0] = "big"
    restored_drafts = drafts(["ab"])
    assert batch_sizes == [0, 2, 1]
    single = words(["ab"], return_tensors="pt")["input_ids"]
    made = teachers["big"].generate(input_ids=single, do_sample=False, max_new_tokens=4, pad_token_id=0)
    assert restored_drafts == words.batch_decode(made[:, 2:], skip_special_tokens=True)
