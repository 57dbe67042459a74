"""attach on GRPO with LoRA: the policy without its adapter is the reference, and only the adapter is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, weights
from tests.support.tiny_grpo import grpo, lora
from tests.unit.learner.test_attach_trl import tokenizer
from tests.unit.learner.test_teachers import teacher

from oven_core.protocol.messages import RunStarted
from oven_learner.hf import trainer_rollback
from oven_learner.hf.attach import attach
from oven_learner.teachers import Teachers
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def adapted(folder: Path, **options: Any) -> Any:
    return grpo(folder, peft_config=lora(), lr_scheduler_type="constant", **options)


def test_attaching_changes_nothing_and_knobs_and_gauges_work(tmp_path: Path) -> None:
    plain = adapted(tmp_path / "plain", max_steps=5)
    plain.train()
    job, line = adapted(tmp_path / "attached", max_steps=5), FakeLink()
    attach(job, link=line)
    job.train()
    assert equal(weights(plain), weights(job))
    assert {"loss", "grad_norm", "reward"} <= line.observed()[0].metrics.keys()
    assert "optim/grad_momentum_cos" in line.observed()[2].metrics, "of the adapter's own moments"
    job, line = adapted(tmp_path, max_steps=5), FakeLink({1: ("optimizer.lr_scale", 0.5), 2: ("grad.clip", 0.7)})
    attach(job, link=line)
    job.train()
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 2
    assert line.series("learning_rate") == pytest.approx([0.01] + [0.005] * 4)


def test_a_snapshot_holds_only_the_adapter_and_can_be_restored(tmp_path: Path) -> None:
    job = adapted(tmp_path, max_steps=5)
    begin = weights(job)
    line = FakeLink({3: ("run.rollback", 0.0)})
    attach(job, link=line)
    sizes: list[int] = []
    take = trainer_rollback.take_snapshot

    def watched(*args: Any) -> Any:
        step, state = take(*args)
        sizes.extend(copied.values.numel() for copied in state["model"].values())
        assert all("lora_" in name for name in state["model"])
        return step, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_rollback, "take_snapshot", watched)
        job.train()
    trained = sum(p.numel() for p in job.model.parameters() if p.requires_grad)
    assert sizes and sum(sizes) % trained == 0
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert [seen.step for seen in line.observed()] == [1, 2, 3, 1, 2, 3, 4, 5]
    step, state = trainer_rollback.take_snapshot(job)
    with torch.no_grad():
        for parameter in job.model.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    trainer_rollback.restore_snapshot(job, state)
    assert job.state.global_step == step and not equal(begin, weights(job))
    assert all(torch.equal(job.model.state_dict()[name], copied.values) for name, copied in state["model"].items())


@pytest.mark.parametrize("reuse", [{}, {"num_iterations": 3}])
def test_beta_can_rise_from_0_with_the_base_model_as_reference(tmp_path: Path, reuse: Any) -> None:
    job = adapted(tmp_path, max_steps=4, **reuse)
    line = FakeLink({2: ("grpo.beta", 0.1)})
    attach(job, link=line)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted) and "kl" in {metric.name for metric in run.metrics}
    (beta,) = (spec for spec in run.actuators if spec.name == "grpo.beta")
    assert (beta.value, beta.low, beta.scale) == (0, 0, "linear") and beta.high == pytest.approx(0.12)
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert ["kl" in seen.metrics for seen in line.observed()] == [False, False, True, True]
    assert line.observed()[2].metrics["kl"] > 0, "the adapter has moved the policy away from it"


def test_an_external_teacher_replaces_the_base_model_as_reference_and_can_be_removed(tmp_path: Path) -> None:
    job = adapted(tmp_path, max_steps=6, beta=0.3)
    teachers = Teachers(job, initial_name="base")
    assert (teachers.names, teachers.active) == (("base",), "base")
    teachers.add("strong", teacher(11), tokenizer())
    line = FakeLink({2: ("teacher.active", "strong"), 4: ("teacher.active", "base")})
    attach(job, link=line, teachers=teachers)
    job.train()
    assert [(r.status, r.before, r.after) for r in line.receipts()] == [
        ("applied", "base", "strong"), ("applied", "strong", "base"),
    ]  # fmt: skip
    kl = line.series("kl")
    assert min(kl[2:4]) > 10 * max(kl[1], kl[4]), "a model of its own making, and far from it another"
    assert all(p.requires_grad == ("lora_" in name) for name, p in job.model.named_parameters())
