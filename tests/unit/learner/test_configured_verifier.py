"""The verifier as the settings name it: its weight, its drafts, and where it is off."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY
from tests.support.tiny_grpo import early, grpo, vowels

import oven_learner as oven
from oven_core.errors import ConfigError
from oven_learner.hf.attach import attach
from oven_learner.rewards import ModelDescription, convene, draft_verifier
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

RULES = {"vowels": vowels, "early": early}
loaded_names: list[str | None] = []


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with the verifier, whose sentence model counts letters."""

    def encoder(name: str | None = None, device: Any = None) -> Any:
        loaded_names.append(name)

        def encode(texts: Sequence[str]) -> torch.Tensor:
            counts = torch.tensor([[1.0 + text.count("a"), float(len(text))] for text in texts])
            return torch.nn.functional.normalize(counts, dim=-1)

        return encode

    loaded_names.clear()
    monkeypatch.setattr(draft_verifier, "load_sentence_encoder", encoder)
    monkeypatch.setenv("OVEN_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OVEN_RUN", "there")
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    members(tmp_path, near={"kind": "verifier"})
    return tmp_path


def members(folder: Path, **models: dict[str, str]) -> None:
    (folder / "config.json").write_text(json.dumps({"committee": {"members": models}}))


def test_it_has_a_tenth_of_the_whole_and_the_reference_models_answers(configured: Path) -> None:
    committee = convene(
        RULES, weights={"early": 0.5}, description=oven.ModelDescription(name="m", description="letters")
    )
    assert committee.weights == {"vowels": pytest.approx(0.6), "early": pytest.approx(0.3), "near": pytest.approx(0.1)}
    job = grpo(configured / "out", rewards=[committee], beta=0.1)
    link = FakeLink()
    attach(job, committee=committee, link=link)
    job.train()
    assert len(link.series("rewards/near/mean")) == 3 and all(
        0.5 < score <= 1 for score in link.series("rewards/near/mean")
    )
    assert loaded_names == [None], "the usual sentence model"


def test_without_a_teacher_it_is_an_error_and_for_other_answers_than_texts_it_is_off(
    configured: Path, caplog: pytest.LogCaptureFixture
) -> None:
    committee = convene(RULES)
    with pytest.raises(ConfigError, match=r"the verifier 'near' compares with a teacher's answers.*beta above 0"):
        attach(grpo(configured / "out", rewards=[committee]), committee=committee, link=FakeLink())
    with caplog.at_level(logging.WARNING):
        off = convene(RULES, description=ModelDescription(name="m", description="moves", modality="motion"))
    assert off.members == ("vowels", "early")
    assert "the verifier near is off, because it compares strings and the modality is motion" in caplog.text
