"""What touches a device works on each one that the machine has: the CPU always, and CUDA where there is a card.

Snapshots, gauges, the read-back of a step's numbers, knobs with their receipts, generation, and teachers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, llama, trainer, weights
from tests.unit.learner.test_attach_trl import grpo, tokenizer
from tests.unit.learner.test_teachers import teacher
from transformers import set_seed

from oven_learner import random_state
from oven_learner.hf.attach import attach
from oven_learner.hf.trainer_rollback import restore_snapshot, take_snapshot
from oven_learner.optim.device_readback import start_transfer
from oven_learner.optim.optimizer_gauges import ALL_GAUGES, OptimizerGauges
from oven_learner.teachers import TeacherConfig, Teachers
from oven_learner.teachers.memory_forms import memory_bytes
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no card"))]
on_each_device = pytest.mark.parametrize("device", DEVICES)
FORMS: dict[str, dict[str, Any]] = {
    "resident": {},
    "8 bits": {"strategy": "quantized", "bits": 8},
    "4 bits": {"strategy": "quantized", "bits": 4},
    "offload": {"strategy": "offload"},
}


@on_each_device
@pytest.mark.parametrize("on_host", [False, True])
def test_a_restored_snapshot_has_every_bit_wherever_it_was_kept(tmp_path: Path, device: str, on_host: bool) -> None:
    job: Any = trainer(tmp_path, use_cpu=device == "cpu", max_steps=4, lr_scheduler_type="constant")
    job.train()
    step, state = take_snapshot(job, torch.device("cpu") if on_host else None)
    before = weights(job)
    moments = [entry["exp_avg"].clone() for entry in job.optimizer.state.values()]
    assert step == 4
    assert {copied.values.device.type for copied in state["model"].values()} == {"cpu" if on_host else device}
    for parameter in job.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    job.optimizer.step()
    assert not equal(before, weights(job))
    restore_snapshot(job, state)
    assert equal(before, weights(job))
    assert equal(moments, [entry["exp_avg"] for entry in job.optimizer.state.values()])
    assert {entry["exp_avg"].device.type for entry in job.optimizer.state.values()} == {device}


@on_each_device
@pytest.mark.parametrize("fused", [False, True])
def test_gauges_of_a_step_equal_those_computed_in_float64(device: str, fused: bool) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(16, 8, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    gauges = OptimizerGauges(optimizer, model, publishes=True)
    numbers: dict[str, float] = {}
    expected: dict[str, float] = {}
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 16, device=device)).square().mean().backward()
        first = {p: optimizer.state[p]["exp_avg"].double() for p in model.parameters() if p in optimizer.state}
        old = [parameter.detach().double().clone() for parameter in model.parameters()]
        measured = gauges.before_step()
        optimizer.step()
        numbers = start_transfer(measured | gauges.after_step()).read()
        if first:
            pairs = [(parameter.grad.double(), first[parameter]) for parameter in first]  # type: ignore[union-attr]
            dot = sum(float((gradient * mean).sum()) for gradient, mean in pairs)
            sizes = [math.sqrt(sum(float(side.square().sum()) for side in sides)) for sides in zip(*pairs, strict=True)]
            new = [parameter.detach().double() for parameter in model.parameters()]
            change = math.sqrt(sum(float((b - a).square().sum()) for a, b in zip(old, new, strict=True)))
            norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in new))
            values = (dot / (sizes[0] * sizes[1]), norm, change / norm)
            expected = dict(zip((spec.name for spec in ALL_GAUGES), values, strict=True))
    assert numbers == pytest.approx(expected, rel=1e-3)


@on_each_device
def test_numbers_of_a_step_arrive_in_float64_with_their_names(device: str) -> None:
    numbers = {
        "loss": torch.tensor(1.5, device=device, dtype=torch.bfloat16),
        "steps": torch.tensor(7, device=device),
        "norm": torch.tensor([0.1], device=device),
        "on the host": torch.tensor(math.nan),
    }
    values = start_transfer(numbers).read()
    assert values["loss"] == 1.5
    assert values["steps"] == 7
    assert values["norm"] == pytest.approx(0.1)
    assert math.isnan(values["on the host"])


@on_each_device
def test_a_decided_clip_is_applied_reported_and_bounds_the_next_update(tmp_path: Path, device: str) -> None:
    link = FakeLink({2: ("grad.clip", 0.5), 4: ("optimizer.lr_scale", 0.5)})
    job: Any = trainer(tmp_path, use_cpu=device == "cpu", lr_scheduler_type="constant", logging_steps=1)
    attach(job, link=link)
    job.train()
    assert [(receipt.status, receipt.after) for receipt in link.receipts()] == [("applied", 0.5), ("applied", 0.5)]
    assert job.args.max_grad_norm == 0.5
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * job.args.learning_rate)
    assert len(link.observed()) == job.state.global_step
    assert all(math.isfinite(value) for value in link.series("grad_norm"))


@on_each_device
def test_generation_when_attached_samples_the_same_tokens_and_weights(tmp_path: Path, device: str) -> None:
    results = []
    for attached in (False, True):
        set_seed(3)
        model = llama()
        model.set_attn_implementation("eager")  # the others' gradients may differ from run to run on a card
        job = grpo(tmp_path / str(attached), model=model, use_cpu=device == "cpu", max_steps=3)
        link = FakeLink()
        if attached:
            attach(job, link=link)
        job.train()
        assert job.accelerator.device.type == device
        results.append((weights(job), random_state.capture()["torch on the CPU"], link))
    assert equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert len(results[1][2].observed()) == 3


@on_each_device
def test_the_random_state_of_the_device_is_preserved(device: str) -> None:
    torch.zeros(1, device=device)  # CUDA has a state once it is in use
    torch.manual_seed(5)
    first = torch.rand(4, device=device)
    torch.manual_seed(5)
    with random_state.preserve_state(None):
        torch.rand(9, device=device)
    assert torch.equal(torch.rand(4, device=device), first)


@on_each_device
@pytest.mark.parametrize("form", FORMS)
def test_a_swapped_teacher_scores_on_the_device_in_each_form(tmp_path: Path, device: str, form: str) -> None:
    pytest.importorskip("bitsandbytes")
    job: Any = grpo(tmp_path, use_cpu=device == "cpu", lr_scheduler_type="constant")
    teachers = Teachers(job, offload_folder=tmp_path / "offloaded", initial_name="none")
    teachers.register(TeacherConfig(name="exact", model=teacher(11, width=64), tokenizer=tokenizer()))
    teachers.register(TeacherConfig(name="same", model=teacher(11, width=64), tokenizer=tokenizer(), **FORMS[form]))
    whole = memory_bytes(teachers.idle_models["exact"])
    ids = torch.randint(3, 32, (2, 8), device=device)  # (B, T)
    scores = {}
    for name in ("exact", "same"):
        teachers.swap(name)
        with torch.no_grad():
            scores[name], *_ = job._get_per_token_logps_and_entropies(job.ref_model, ids, torch.ones_like(ids), 7)
    assert scores["same"].device.type == device
    tolerance = {"resident": 0.0, "offload": 1e-6, "8 bits": 0.05, "4 bits": 0.5}[form]
    assert float((scores["same"] - scores["exact"]).abs().max()) <= tolerance
    if form != "resident":
        assert memory_bytes(job.ref_model) < whole
