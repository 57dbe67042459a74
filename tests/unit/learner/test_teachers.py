"""GRPO's anchor: the KL term has a gradient, of the teacher that is active, and a swap says what became of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, llama, weights
from tests.unit.learner.test_attach_trl import grpo, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, set_seed

from oven_core.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import RunStarted
from oven_learner.hf.attach import attach
from oven_learner.teachers import Teachers
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def teacher(seed: int, vocabulary: int = 32, width: int = 8) -> Any:
    """Another architecture than the policy's, with its vocabulary."""
    set_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def anchored(folder: Path, beta: float = 0.5, **settings: Any) -> tuple[Any, Teachers]:
    """A trainer whose policy was never on disk, with two teachers; `one` is active."""
    job: Any = grpo(folder, lr_scheduler_type="constant", **settings)
    teachers = Teachers(job)
    teachers.add("one", teacher(11), tokenizer())
    teachers.add("two", teacher(12), tokenizer())
    teachers.swap("one")
    job.beta = job.args.beta = beta
    set_seed(3)
    return job, teachers


def batch(job: Any) -> dict[str, torch.Tensor]:
    """Four sampled completions that all got the same reward: no advantage, so the KL term is all of the loss."""
    job.model.train()
    job.current_gradient_accumulation_steps = 1  # as `train()` sets it
    set_seed(5)
    inputs: dict[str, torch.Tensor] = job._generate_and_score_completions([{"prompt": "a"}] * 4)
    return inputs | {"advantages": torch.zeros(4)}


def gradient(job: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    job.model.zero_grad()
    job._compute_loss(job.model, inputs).backward()
    return torch.cat([parameter.grad.flatten().clone() for parameter in job.model.parameters()])  # (N,)


def kl_gradient(job: Any, reference: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """β·∂/∂θ of Σ mask·ρ·(exp(r) − r − 1) / Σ mask with r = log π_ref − log π_θ, from the models' plain logits. ρ is
    the importance ratio, 1 here but with a gradient, where TRL corrects the bias (DeepSeek-V3.2, arXiv 2512.02556)."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)  # (B, T)
    seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    length = inputs["completion_ids"].size(1)

    def scores(model: Any) -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1] / job.temperature  # (B, T − 1, V)
        picked: torch.Tensor = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return picked[:, -length:]  # (B, C)

    policy = scores(job.model)
    with torch.no_grad():
        r = scores(reference)
    mask = inputs["completion_mask"]
    r = r - policy
    ratio = torch.exp(policy - policy.detach()) if job.args.use_bias_correction_kl else torch.ones_like(policy)
    loss = job.beta * (ratio * (torch.exp(r) - r - 1) * mask).sum() / mask.sum()
    parts = torch.autograd.grad(loss, list(job.model.parameters()))
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("corrected", [True, False])
def test_the_kl_gradient_uses_the_active_teacher(tmp_path: Path, corrected: bool) -> None:
    job, teachers = anchored(tmp_path, use_bias_correction_kl=corrected)
    gradients = {}
    for name, seed in (("one", 11), ("two", 12)):
        teachers.swap(name)
        inputs = batch(job)
        gradients[name] = gradient(job, inputs)
        assert gradients[name].norm() > 1e-3
        wanted = kl_gradient(job, teacher(seed).eval(), inputs)
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=1e-5)
    assert (gradients["one"] - gradients["two"]).norm() > 0.1 * gradients["one"].norm()


def test_without_beta_the_term_is_absent_bit_for_bit(tmp_path: Path) -> None:
    ends = []
    for job in (grpo(tmp_path / "plain", lr_scheduler_type="constant"), anchored(tmp_path, beta=0)[0]):
        inputs = batch(job)
        assert not gradient(job, inputs).any(), "no advantage and no KL term: exactly nothing"
        spread = inputs | {"advantages": torch.tensor([1.0, -1.0, 0.5, -0.5])}
        ends.append(gradient(job, spread))
    assert ends[0].any() and torch.equal(*ends)


def test_beta_scales_the_term_live(tmp_path: Path) -> None:
    job, _ = anchored(tmp_path, beta=0.5)
    inputs = batch(job)
    once = gradient(job, inputs)
    job.beta = 1.5
    torch.testing.assert_close(gradient(job, inputs), 3 * once, rtol=1e-4, atol=1e-7)


def test_a_teacher_that_is_added_while_training_is_announced_and_not_chosen(tmp_path: Path) -> None:
    job: Any = grpo(tmp_path, lr_scheduler_type="constant")
    teachers = Teachers(job)
    teachers.add("one", teacher(11), tokenizer())
    teachers.swap("one")
    job.beta = job.args.beta = 0.5
    active = []

    class Adding(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            active.append(teachers.active)
            if state.global_step in (1, 2):
                teachers.add(("two", "three")[state.global_step - 1], teacher(11 + state.global_step), tokenizer())

    line = FakeLink({4: ("teacher.active", "three")})
    attach(job, link=line, teachers=teachers)
    job.add_callback(Adding())
    job.train()
    run, announcements = line.sent[0], [body for body in line.sent if isinstance(body, ActuatorAnnounced)]
    assert isinstance(run, RunStarted) and "teacher.active" not in {spec.name for spec in run.actuators}
    assert [
        (announcement.step, announcement.actuator.choices, announcement.actuator.value)
        for announcement in announcements
    ] == [
        (2, ("one", "two"), "one"),
        (3, ("one", "two", "three"), "one"),
    ]
    assert set(active[:4]) == {"one"} and active[-1] == "three"
    assert [receipt.status for receipt in line.receipts() if receipt.actuator == "teacher.active"] == ["applied"]


def test_a_swap_is_announced_applied_and_read_back(tmp_path: Path) -> None:
    job, teachers = anchored(tmp_path)
    line = FakeLink({2: ("teacher.active", "two"), 4: ("grpo.beta", 1.0)})
    attach(job, link=line, teachers=teachers)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted) and "kl" in {metric.name for metric in run.metrics}
    specs = {spec.name: spec for spec in run.actuators}
    assert specs["teacher.active"].choices == ("one", "two") and specs["teacher.active"].value == "one"
    assert specs["teacher.active"].unit == "weakest first"
    assert [specs["grpo.beta"].low, specs["grpo.beta"].high] == pytest.approx([0.05, 1.5])
    assert [(r.status, r.before, r.after) for r in line.receipts()] == [
        ("applied", "one", "two"),
        ("applied", 0.5, 1.0),
    ]
    assert (teachers.active, job.beta) == ("two", 1.0)


def test_without_a_reference_model_neither_is_announced_and_with_one_alone_no_choice(tmp_path: Path) -> None:
    line = FakeLink()
    job: Any = grpo(tmp_path)
    attach(job, link=line, teachers=Teachers(job))
    job.train()
    assert isinstance(line.sent[0], RunStarted)
    assert not {"grpo.beta", "teacher.active"} & {spec.name for spec in line.sent[0].actuators}
    policy = llama()
    policy.save_pretrained(tmp_path / "policy")
    job, line = grpo(tmp_path, model=str(tmp_path / "policy"), beta=0.1), FakeLink()
    teachers = Teachers(job)
    assert teachers.names == ("initial",) == (teachers.active,)
    attach(job, link=line, teachers=teachers)
    job.train()
    assert isinstance(line.sent[0], RunStarted)
    announced = {spec.name for spec in line.sent[0].actuators}
    assert "grpo.beta" in announced and "teacher.active" not in announced


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (teacher(1, width=64), None), "bytes"),
        (lambda: (teacher(1, vocabulary=40), None), "40 rows, but the policy's has 32"),
        (lambda: (teacher(1, vocabulary=31), tokenizer()), "31 rows, but the policy's has 32"),
        (lambda: (teacher(1), shuffled()), "'a' to 4 instead of 3"),
        (lambda: (poisoned(), None), "probe token is nan"),
    ],
)
def test_unsuitable_teachers_are_refused_and_the_old_one_stays(
    tmp_path: Path, make: Callable[[], tuple[Any, Any]], message: str
) -> None:
    job, _ = anchored(tmp_path)
    teachers = Teachers(job, limit_bytes=20_000, initial_name="old")
    teachers.add("new", teacher(12))
    model, words = make()
    with pytest.raises(TeacherRefusedError, match="teacher 'odd' is refused") as refused:
        teachers.add("odd", model, words)
    assert message in str(refused.value)
    line = FakeLink({2: ("teacher.active", "odd")})
    attach(job, link=line, teachers=teachers)
    job.train()
    (receipt,) = line.receipts()
    assert (receipt.status, receipt.before, receipt.after) == ("rejected", "old", "old")
    assert message in receipt.reason and teachers.active == "old" and len(line.series("kl")) == 6


def shuffled() -> Any:
    made: Any = tokenizer()
    words = made.get_vocab()
    words["a"], words["b"] = words["b"], words["a"]
    made.get_vocab = lambda: words
    return made


def poisoned() -> Any:
    model = teacher(1)
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    return model


@pytest.mark.parametrize("reuse", [{"num_iterations": 3}, {"steps_per_generation": 3}])
def test_a_swap_inside_a_generation_buffer_scores_anew_with_the_new_teacher(tmp_path: Path, reuse: Any) -> None:
    """Every step's reference log-probabilities are those of the teacher that is active in that step."""
    job, teachers = anchored(tmp_path, max_steps=9, **reuse)
    line = FakeLink({1: ("teacher.active", "two"), 5: ("teacher.active", "one"), 6: ("teacher.active", "two")})
    seen: list[tuple[str, str]] = []
    generated: list[int] = []
    compute, generate = job._compute_loss, job._generate_and_score_completions

    def watched(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            length = inputs["completion_ids"].size(1)
            scored, _, _ = job._get_per_token_logps_and_entropies(job.ref_model, ids, mask, length)
        close = torch.allclose(scored, inputs["ref_per_token_logps"], atol=1e-5)
        seen.append((teachers.active, "its own" if close else "another's"))
        return compute(model, inputs)

    def counted(inputs: Any) -> Any:
        generated.append(job.state.global_step)
        return generate(inputs)

    job._compute_loss, job._generate_and_score_completions = watched, counted
    attach(job, link=line, teachers=teachers)
    job.train()
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    names = ["one"] + ["two"] * 4 + ["one"] + ["two"] * 3
    assert seen == [(name, "its own") for name in names]
    assert generated == [0, 1, 3, 5, 6], "once a generation, and once for a swap that is inside of one"


def test_the_anchor_survives_a_rollback(tmp_path: Path) -> None:
    job, teachers = anchored(tmp_path)
    line = FakeLink({2: ("teacher.active", "two"), 3: ("grpo.beta", 1.0), 5: ("run.rollback", 0.0)})
    attach(job, link=line, teachers=teachers)
    before = weights(job)
    unchanged: list[bool] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if len(line.observed()) == 5:
                unchanged.append(equal(before, weights(job)))

    job.add_callback(Watch())
    job.train()
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    assert unchanged == [True], "the weights went back"
    assert (teachers.active, job.beta) == ("two", 1.0)
    assert all(not parameter.requires_grad for parameter in job.ref_model.parameters())


def test_a_resumed_run_has_the_teacher_that_the_log_left(tmp_path: Path) -> None:
    from oven_learner.link.resume_state import ResumeState

    job, teachers = anchored(tmp_path)
    line = FakeLink(past=ResumeState(1, 3, 9, {"1": {"teacher.active": "two", "grpo.beta": 1.0}}))
    attach(job, link=line, teachers=teachers)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    assert {s.name: s.value for s in run.actuators if s.name in ("teacher.active", "grpo.beta")} == {
        "teacher.active": "two", "grpo.beta": 1.0,
    }  # fmt: skip


def test_the_memory_limit_counts_all_loaded_teachers(tmp_path: Path) -> None:
    job = grpo(tmp_path)
    teacher_bytes = sum(p.numel() * 4 for p in teacher(1).parameters())
    teachers = Teachers(job, limit_bytes=2 * teacher_bytes)
    teachers.add("a", teacher(1))
    teachers.add("b", teacher(2))
    with pytest.raises(
        TeacherRefusedError, match=f"and {3 * teacher_bytes:,} together .* limit is {2 * teacher_bytes:,}.*limit_bytes"
    ):
        teachers.add("c", teacher(3))
    assert (teachers.names, len(teachers), list(teachers.refused)) == (("a", "b", "c"), 2, ["c"])


def test_invalid_teachers_are_refused(tmp_path: Path) -> None:
    job, teachers = anchored(tmp_path)
    with pytest.raises(TeacherRefusedError, match="shares parameters"):
        teachers.add("self", job.model)
    with pytest.raises(TeacherRefusedError, match="forward runs another model"):
        teachers.add("copy", copy.deepcopy(job.model))
    assert all(parameter.requires_grad for parameter in job.model.parameters())
    with pytest.raises(ConfigError, match="already exists"):
        teachers.add("one", teacher(1))
    with pytest.raises(UnknownNameError, match="two"):
        teachers.swap("tow")
    job.ref_model = teacher(4)
    with pytest.raises(ConfigError, match="is not in the registry"):
        _ = teachers.active
    job.args.sync_ref_model = True
    with pytest.raises(ConfigError, match="sync_ref_model"):
        Teachers(job)
    job.args.sync_ref_model, job.is_deepspeed_enabled = False, True
    with pytest.raises(ConfigError, match="under FSDP or DeepSpeed"):
        Teachers(job)
