"""The same script without a stack: OVEN_MODE, `optional=True`, and what a client without a controller does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, rows, trainer, weights
from tests.support.loops import STEPS, Loop

import oven_learner as oven
from oven_core.errors import ConfigError
from oven_learner.custom_loop import connect
from oven_learner.hf.attach import IdleAttachment, attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVEN_MODE", "OVEN_URL", "OVEN_RUN", "OVEN_CREDS", "OVEN_KEYS", "OVEN_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)


NOWHERE = {"OVEN_URL": "nats://127.0.0.1:9", "OVEN_RUN": "none"}


@pytest.mark.parametrize(
    ("word", "optional", "env", "fails"),
    [
        ("", False, {}, "OVEN_URL is not set"),
        ("required", True, {}, "OVEN_URL is not set"),
        ("", True, {}, ""),
        ("optional", False, {}, ""),
        (" Optional ", False, {"OVEN_URL": "nats://127.0.0.1:9"}, ""),
        ("disabled", False, {}, ""),
        ("disabled", False, NOWHERE, ""),
        ("perhaps", True, {}, "OVEN_MODE='perhaps' is invalid; unset it, or set required, optional, disabled"),
    ],
)
def test_oven_mode_decides_whether_a_controller_is_needed(
    word: str, optional: bool, env: dict[str, str], fails: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for name, value in ({"OVEN_MODE": word} | env).items():
        monkeypatch.setenv(name, value)
    job = trainer(tmp_path)
    if fails:
        with pytest.raises(ConfigError, match=fails):
            connect(max_steps=3, optional=optional)
        with pytest.raises(ConfigError, match=fails):
            attach(job, optional=optional)
        return
    with caplog.at_level("WARNING", logger="oven.learner"):
        with connect(max_steps=3, optional=optional) as client:
            client.observe(1, {"loss": 1.0})
            client.poll()
            assert (client.stop_reason, client.hold_reason, client.step, client.lr_scale) == ("", "", 1, 1.0)
        attachment = attach(job, optional=optional)
    assert isinstance(attachment, IdleAttachment) and attachment.client is not None
    assert attachment.client.close("completed") and attachment.client.stop_reason == ""
    assert len(caplog.records) == 2
    assert all("training continues without a controller" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("mode", ["optional", "disabled"])
def test_a_loop_without_a_controller_trains_the_same_bits(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clipping that it asked for is its own setting, and stays; nothing is measured."""
    monkeypatch.setenv("OVEN_MODE", mode)
    alone = Loop(clip=0.1)
    options: dict[str, Any] = {"model": alone.model, "optimizer": alone.optimizer, "max_steps": STEPS}
    evaluations: list[int] = []
    hooks = len(alone.optimizer._optimizer_step_pre_hooks)

    def evaluate() -> dict[str, float]:
        evaluations.append(1)
        return {"eval/loss": 1.0}

    with connect(clip=0.1, evaluate=evaluate, **options) as client:
        for step in range(1, STEPS + 1):
            client.observe(step, {"loss": alone.step()})
            client.poll()
    assert not evaluations and len(alone.optimizer._optimizer_step_pre_hooks) == hooks
    monkeypatch.delenv("OVEN_MODE")
    steered = Loop(clip=0.1)
    steered.run(FakeLink())
    assert equal(alone.weights(), steered.weights())


def test_a_loop_without_a_controller_obeys_its_time_budget_and_request_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with connect(optional=True, seconds=1e-9) as client:
        client.observe(1, {})
        client.poll()
        assert client.out_of_time and client.stop_reason == "the time budget is used up"
    with connect(optional=True, step=5) as client:
        client.hold("no judge answers")
        client.poll()
        assert not client.hold_reason and client.step == 5 and "the run is not held" in caplog.text
        client.request_stop("SIGTERM")
        client.poll()
        assert client.stop_reason == "SIGTERM"


def test_a_trainer_without_a_controller_is_unchanged(tmp_path: Path) -> None:
    plain, job = trainer(tmp_path / "a"), trainer(tmp_path / "b")
    known = set(vars(job)), list(job.callback_handler.callbacks)
    attach(job, optional=True)
    assert (set(vars(job)), job.callback_handler.callbacks) == known
    for trainer_or_plain in (plain, job):
        torch.manual_seed(3)
        trainer_or_plain.train()
    assert equal(weights(plain), weights(job))


def test_a_mixture_without_a_controller_trains_bit_for_bit_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset

    def made(folder: Path) -> tuple[Any, Any]:
        parts = {
            name: Dataset.from_list([{k: v.tolist() for k, v in row.items()} for row in part])
            for name, part in (("a", rows(32)[:16]), ("b", rows(32)[16:]))
        }
        mixture = oven.Mixture(parts, seed=0)
        return trainer(folder, data=mixture.dataset.with_format("torch")), mixture

    result = []
    for mode, link in (("required", FakeLink()), ("optional", None)):
        monkeypatch.setenv("OVEN_MODE", mode)
        job, mixture = made(tmp_path / mode)
        attach(job, mixture=mixture, link=link)
        job.train()
        result.append(weights(job))
    assert equal(*result)
