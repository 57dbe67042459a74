"""The recipe's job on a given model: what is put together, and what is refused in one line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.activations import model, tokenizer
from tests.support.attached import THIRD_PARTY

from oven_learner.testing import FakeLink
from oven_recipes import preparation
from oven_recipes.oracle.settings import OracleSettings, parse_start
from oven_recipes.oracle.training_job import build
from oven_recipes.training_runner import Job
from oven_runs.home.run_folder import PREPARING

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SMALL: dict[str, Any] = {
    "hidden": 16, "pretrain_steps": 0, "sft_steps": 1, "sft_batch": 2, "train_texts": 9, "prompts_per_step": 1,
    "num_generations": 2, "max_completion_length": 4, "max_steps": 1, "eval_items": 2, "quick_items": 2,
}  # fmt: skip


def job(folder: Path, start: str = "tuned", **values: Any) -> Job:
    settings = OracleSettings.model_validate({**SMALL, **values})
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    return build(settings, parse_start(start, 1, settings), 1, checkpoints, folder / "cache")


def base_model_of(folder: Path) -> str:
    """A model's folder."""
    model().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    return str(folder / "model")


def test_the_reference_is_the_supervised_adapter_also_where_the_penalty_begins_at_0(tmp_path: Path) -> None:
    trainer = job(tmp_path, kl_penalty=0).trainer
    assert trainer.beta == trainer.args.beta == 0 and trainer.args.scale_rewards == "none"
    weights = dict(trainer.model.named_parameters())
    reference = {name: weight for name, weight in weights.items() if ".ref." in name}
    assert reference and all(torch.equal(w, weights[n.replace(".ref.", ".default.")]) for n, w in reference.items())
    assert any(weight.abs().sum() > 0 for name, weight in reference.items() if "lora_B" in name), "it was taught"
    assert not any(weight.requires_grad for weight in reference.values())


def test_the_evaluations_before_the_run_report_their_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those before RunStarted, from their first second. With 250 items per benchmark they take most of a minute."""
    monkeypatch.setattr(preparation, "INTERVAL_S", 0.0)
    oracle, line = job(tmp_path), FakeLink()
    oracle.attach(link=line)
    lines: dict[tuple[str, int], None] = {}  # each line about the preparation, with the number of messages before it

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines[record.getMessage(), len(line.sent)] = None

    handler = Lines()
    preparation.log.addHandler(handler)
    caplog.set_level(logging.INFO)
    try:
        oracle.trainer.train()  # ends with a third evaluation
    finally:
        preparation.log.removeHandler(handler)
    assert list(lines) == [
        (f"{PREPARING}{stage}: answer {done} of 108", 0)
        for stage in ("evaluation at the start", "first quick evaluation")
        for done in (0, 54)
    ]
