"""The live mixture: repeatable, close to its weights, changeable; and the order that each trainer expects is kept."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, trainer
from tests.unit.learner.test_attach_trl import grpo
from transformers import Trainer

from oven_core.errors import ConfigError
from oven_learner.hf.attach import attach
from oven_learner.hf.knobs.mixture import LAG_CHUNKS, Mixture, MixtureSampler
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

NAMES = ("len3", "len4", "len5")
EVEN = dict.fromkeys(NAMES, 1.0)
ONLY_LONG = {"len3": 0.0, "len4": 0.0, "len5": 1.0}


def made(weights: dict[str, float] = EVEN, seed: int = 1) -> Mixture:
    return Mixture({name: list(range(10)) for name in NAMES}, weights, seed=seed)


def counts(mixture: Mixture, rows: list[int]) -> list[int]:
    return [sum(row in mixture.pools[name] for row in rows) for name in NAMES]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda w: sum(w) > 1e-3), st.integers(0, 1000))
def test_a_chunk_holds_each_dataset_within_one_of_its_share(weights: list[float], chunk: int) -> None:
    mixture = made(dict(zip(NAMES, weights, strict=True)))
    rows = mixture.draw(chunk, 32)
    assert len(rows) == 32
    for count, weight in zip(counts(mixture, rows), weights, strict=True):
        assert abs(count - 32 * weight / sum(weights)) <= 1 + 1e-6
        assert weight > 0 or count == 0


def test_a_restored_timeline_draws_the_same_chunks_and_continues() -> None:
    first = made()
    drawn = [first.draw(k, 8) for k in range(3)]
    first.set(ONLY_LONG)
    drawn += [first.draw(k, 8) for k in range(3, 6)]
    second = made()
    second.load_state_dict(first.state_dict())
    assert [second.draw(k, 8) for k in range(6)] == drawn
    assert all(row in second.pools["len5"] for rows in drawn[3:] for row in rows)
    second.load_state_dict(first.state_dict())
    second.set(EVEN)
    assert [chunk for chunk, _ in second.timeline] == [0, 3, 6]


@pytest.mark.parametrize(
    "weights",
    [
        {"len3": 1.0},
        {**EVEN, "len9": 1.0},
        dict.fromkeys(NAMES, 0.0),
        {**EVEN, "len3": -0.1},
        {**EVEN, "len3": float("nan")},
        {**EVEN, "len3": float("inf")},
    ],
)
def test_bad_weights_are_refused_and_change_nothing(weights: dict[str, float]) -> None:
    mixture = made()
    with pytest.raises(ConfigError, match="mixture"):
        mixture.set(weights)
    assert mixture.get() == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
    with pytest.raises(ConfigError, match="'hard': 0"):
        Mixture({"easy": [1], "hard": []})


def test_the_sampler_repeats_rows_as_trl_expects_and_counts_chunks_over_epochs() -> None:
    mixture = made()
    sampler = MixtureSampler(mixture, chunk_rows=3, group_size=2, repeats=2, chunks=2)
    rows = list(sampler)
    assert len(rows) == len(sampler) == 24
    assert rows[:6] == rows[6:12] and rows[12:18] == rows[18:]
    assert rows[0::2] == rows[1::2]
    assert rows[0:6:2] == mixture.draw(0, 3)
    sampler.set_epoch(1)
    assert list(islice(sampler, 12))[0:6:2] == mixture.draw(2, 3)


def steps_of(folder: Path, mixture: Mixture, line: FakeLink, resume: str | None = None, **settings: Any) -> list[Any]:
    """What each optimizer step trains on: of how many rows the second dataset's are, marked by a first 1."""
    job: Trainer = trainer(folder, data=mixture.dataset, **settings)
    attach(job, link=line, mixture=mixture)
    seen: list[list[float]] = []
    step = job.training_step

    def watched(model: Any, inputs: Any, *rest: Any, **more: Any) -> torch.Tensor:
        seen.append(inputs["x"][:, 0].tolist())
        return step(model, inputs, *rest, **more)

    job.training_step = watched  # type: ignore[method-assign]
    job.train(resume_from_checkpoint=resume)
    return seen


def halves() -> Mixture:
    def rows(mark: float) -> list[dict[str, torch.Tensor]]:
        return [{"x": torch.tensor([mark, n, 0.0, 0.0]), "labels": torch.tensor([mark])} for n in range(16)]

    return Mixture({"easy": rows(0.0), "hard": rows(1.0)}, seed=3)


@pytest.mark.parametrize("settings", [{}, {"max_steps": -1, "num_train_epochs": 1.5}], ids=["steps", "epochs"])
def test_a_plain_trainer_draws_by_the_mixture_and_resumes_with_the_same_rows(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    settings = settings | {"save_strategy": "steps", "save_steps": 6}
    line = FakeLink({4: ("data.mixture", {"easy": 0.0, "hard": 1.0})})
    seen = steps_of(tmp_path, halves(), line, **settings)
    assert [sum(rows) for rows in seen] == [2.0] * (3 + LAG_CHUNKS) + [4.0] * 7, "step 5 was drawn"
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    past = ResumeState(1, 12, 99, {"1": {"data.mixture": {"easy": 0.0, "hard": 1.0}}})
    again = steps_of(tmp_path, halves(), FakeLink(past=past), str(tmp_path / "checkpoint-6"), **settings)
    assert again == seen[6:]


def test_grpo_keeps_its_groups_with_a_mixture(tmp_path: Path) -> None:
    mixture = Mixture(
        {name: Dataset.from_list([{"prompt": letter} for letter in letters])
         for name, letters in {"early": "abcd", "late": "wxyz"}.items()}, seed=2,
    )  # fmt: skip
    job: Any = grpo(tmp_path, data=mixture.dataset, num_iterations=2, max_steps=8, generation_batch_size=8)
    line = FakeLink({2: ("data.mixture", {"early": 0.0, "late": 1.0})})
    attach(job, link=line, mixture=mixture)
    prompts: list[list[str]] = []
    generate = job._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        prompts.append([row["prompt"] for row in inputs])
        return generate(inputs)

    job._generate_and_score_completions = watched
    job.train()
    assert [len(batch) for batch in prompts] == [8] * 2, "a generation serves two steps, twice"
    for generation in prompts:
        first, second = generation[:4], generation[4:]
        assert len(set(first)) == len(set(second)) == 1, "four completions of one prompt stand together"
    assert set(prompts[0]) & set("abcd") and set(prompts[0]) & set("wxyz") and set(prompts[1]) <= set("wxyz")
    assert line.receipts()[0].after == {"early": 0.0, "late": 1.0}
