"""Channels beside GRPO's loss: each term's gradient against an explicit one, and no trace of it at weight 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, llama, weights
from tests.support.tiny_grpo import ROWS, batch, differentiated, gradient, grpo, lora, patient, vowels
from tests.unit.learner.test_attach_trl import tokenizer
from tests.unit.learner.test_teachers import teacher
from trl.trainer.distillation_trainer import _chunked_divergence_loss
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunStarted
from oven_learner.hf.attach import attach
from oven_learner.losses import Channel, ChannelTrainer, Distillation, Supervised
from oven_learner.losses.distillation import generalized_jsd
from oven_learner.rewards import Committee
from oven_learner.teachers import Teachers
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def both(**of_each: float) -> list[Channel]:
    return [Distillation(of_each.get("distill", 0.0)), Supervised(of_each.get("sft", 0.0))]


def channelled(folder: Path, *channels: Channel, **options: Any) -> tuple[Any, Teachers]:
    """With two teachers, of which the first is active; GRPO's β is 0."""
    job = grpo(folder, ChannelTrainer, channels=channels, lr_scheduler_type="constant", **options)
    teachers = Teachers(job)
    teachers.add("one", teacher(11), tokenizer())
    teachers.add("two", teacher(12), tokenizer())
    teachers.swap("one")
    return job, teachers


TRL: dict[str, dict[str, Any]] = {
    **{loss: {"loss_type": loss} for loss in ("grpo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo")},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "anchored": {"beta": 0.2},
    "twice": {"num_iterations": 2, "max_steps": 4},
    "split": {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "async": {"rewards": (vowels, patient), "reward_weights": [0.3, 0.7]},
    "entropy": {"entropy_coef": 0.01, "top_entropy_quantile": 0.5},
    "lora": {"peft_config": lora, "beta": 0.1},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8, "eval_dataset": True},
}


@pytest.mark.parametrize("documented", TRL)
def test_weight_0_equals_trl_bit_for_bit(tmp_path: Path, documented: str) -> None:
    ends = []
    for cls, channels in ((GRPOTrainer, {}), (ChannelTrainer, {"channels": both()})):
        options: dict[str, Any] = dict(TRL[documented])
        if "peft_config" in options:
            options["peft_config"] = lora()
        if "eval_dataset" in options:
            options["eval_dataset"] = Dataset.from_list(ROWS[:2])
        job = grpo(tmp_path / cls.__name__, cls, logging_steps=1, **options, **channels)
        job.train()
        ends.append((job.state.log_history, weights(job), torch.get_rng_state()))
    (logs, trained, generator), (logs_too, trained_too, generator_too) = ends
    timed = ("runtime", "per_second", "step_time")
    untimed_logs = [[{k: v for k, v in e.items() if not k.endswith(timed)} for e in log] for log in (logs, logs_too)]
    assert str(untimed_logs[0]) == str(untimed_logs[1])  # NaN is no equal of itself
    assert all(torch.equal(a, b) for a, b in zip(trained, trained_too, strict=True))
    assert torch.equal(generator, generator_too)


def test_a_checkpoint_resumes_as_trls_does(tmp_path: Path) -> None:
    ends = []
    for cls in (GRPOTrainer, ChannelTrainer):

        def made(cls: Any = cls) -> Any:
            channels = {"channels": both()} if cls is ChannelTrainer else {}
            return grpo(tmp_path / cls.__name__, cls, save_strategy="steps", save_steps=2, max_steps=4, **channels)

        made().train()
        resumed = made()
        resumed.train(resume_from_checkpoint=str(tmp_path / cls.__name__ / "checkpoint-2"))
        assert resumed.state.global_step == 4
        ends.append(weights(resumed))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def policy_logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits[:, :-1]  # (B, T − 1, V)
    return logits[:, -inputs["completion_ids"].size(1) :]


def explicit(job: Any, inputs: dict[str, Any], reference: Any, beta: float, temperature: float) -> torch.Tensor:
    """∂/∂θ of the mean divergence over the completions' tokens, written out with probabilities."""
    q = (policy_logits(job.model, inputs) / temperature).softmax(-1)
    with torch.no_grad():
        p = (policy_logits(reference, inputs) / temperature).softmax(-1)
    if beta in (0, 1):
        per_token = (p * (p / q).log()).sum(-1) if beta == 0 else (q * (q / p).log()).sum(-1)
    else:
        m = beta * p + (1 - beta) * q
        per_token = beta * (p * (p / m).log()).sum(-1) + (1 - beta) * (q * (q / m).log()).sum(-1)
    mask = inputs["completion_mask"]
    return differentiated(job, (per_token * mask).sum() / mask.sum())


@pytest.mark.parametrize(("beta", "temperature"), [(1.0, None), (0.0, 2.0), (0.3, 0.7)])
def test_distillation_gradient_uses_the_active_teacher(tmp_path: Path, beta: float, temperature: float | None) -> None:
    channel = Distillation(0.7, beta=beta, temperature=temperature)
    job, teachers = channelled(tmp_path, channel, temperature=1.3)
    gradients = {}
    for name, seed in (("one", 11), ("two", 12)):
        teachers.swap(name)
        inputs = batch(job)
        inputs["completion_mask"][0, 2:] = 0  # an answer that ended early
        gradients[name] = gradient(job, inputs)
        wanted = 0.7 * explicit(job, inputs, teacher(seed).eval(), beta, temperature or 1.3)
        assert wanted.norm() > 1e-4
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=1e-6)
    assert (gradients["one"] - gradients["two"]).norm() > 0.1 * gradients["one"].norm()


def test_tool_output_is_not_distilled(tmp_path: Path) -> None:
    job, _ = channelled(tmp_path, Distillation(1.0))
    inputs = batch(job)
    mask = torch.ones_like(inputs["completion_mask"])
    mask[:, 1:3] = 0
    both_masks = inputs | {"completion_mask": inputs["completion_mask"] * mask}
    torch.testing.assert_close(
        job.channels[0].tally(job.model, inputs | {"tool_mask": mask})[1], both_masks["completion_mask"].sum()
    )


def test_supervision_gradient_is_that_of_the_reference_likelihood(tmp_path: Path) -> None:
    job, _ = channelled(tmp_path, Supervised(0.4))
    inputs = batch(job)
    actual = gradient(job, inputs)
    words = tokenizer()
    total = torch.zeros(())
    for row in (ROWS[0], ROWS[1]):  # each four times in the batch
        ids = torch.tensor([[*words.encode(row["prompt"]), *words.encode(row["reference"]), words.eos_token_id]])
        log_probs = job.model(input_ids=ids).logits.log_softmax(-1)[0]
        total = total - log_probs[-3, ids[0, -2]] - log_probs[-2, ids[0, -1]]
    wanted = 0.4 * differentiated(job, total / 4)
    assert wanted.norm() > 1e-3
    torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-6)
    assert gradient(job, inputs | {"oven_reference": [None, ""] * 4}).norm() == 0, "no reference, no term"


def test_terms_are_exactly_absent_at_weight_0_and_scale_with_it(tmp_path: Path) -> None:
    job, _ = channelled(tmp_path, *both())
    inputs = batch(job)
    state = torch.get_rng_state()
    assert not gradient(job, inputs).any()
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(name.startswith("channel/") for name in job._metrics["train"])
    for channel in job.channels:
        channel.set_weight(0.2)
        once = gradient(job, inputs)
        channel.set_weight(0.6)
        torch.testing.assert_close(gradient(job, inputs), 3 * once, rtol=1e-4, atol=1e-7)
        assert once.norm() > 1e-4
        channel.set_weight(0.0)
    assert not gradient(job, inputs).any()


def test_accumulated_micro_batches_are_averaged_once(tmp_path: Path) -> None:
    job, _ = channelled(tmp_path, *both(distill=0.5, sft=0.5))
    inputs = batch(job)
    inputs["completion_mask"][:] = 1  # as many tokens in each half
    whole = gradient(job, inputs)
    job.current_gradient_accumulation_steps = 2
    halves = torch.zeros_like(whole)
    for rows in (slice(0, 4), slice(4, 8)):
        part = {k: v if isinstance(v, torch.Tensor) and not v.ndim else v[rows] for k, v in inputs.items()}
        halves += gradient(job, part)
    torch.testing.assert_close(halves, whole, rtol=1e-3, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    beta=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    temperature=st.floats(0.3, 3.0),
    scale=st.floats(0.1, 8.0),
    seed=st.integers(0, 99),
)
def test_the_divergence_matches_trl_and_is_a_divergence(
    beta: float, temperature: float, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = [torch.randn(1, 5, 4, generator=generator) * scale for _ in range(2)]
    heads = [torch.randn(7, 4, generator=generator) for _ in range(2)]
    student, teacher_logits = (h @ head.T for h, head in zip(hidden, heads, strict=True))  # (1, 5, V)
    divergence = generalized_jsd(student, teacher_logits, beta, temperature)
    mask = torch.ones(1, 5, dtype=torch.int64)
    wanted, _, _ = _chunked_divergence_loss(
        hidden[0], hidden[1], heads[0], heads[1], mask, beta, temperature=temperature
    )
    assert float(divergence.mean()) == pytest.approx(float(wanted), rel=1e-3, abs=1e-5)
    assert bool((divergence >= -1e-5).all())
    assert float(generalized_jsd(student, student, beta, temperature).abs().max()) < 1e-5


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_rows_masked_by_both_models_do_not_count(beta: float) -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher_logits = (torch.randn(3, 7, generator=generator) for _ in range(2))
    padding = torch.full((3, 2), float("-inf"))
    padded = torch.cat([student, padding], 1).requires_grad_()
    divergence = generalized_jsd(padded, torch.cat([teacher_logits, padding], 1), beta)
    torch.testing.assert_close(divergence, generalized_jsd(student, teacher_logits, beta))
    (gradient,) = torch.autograd.grad(divergence.sum(), padded)
    assert bool(gradient.isfinite().all()) and not gradient[:, 7:].any()


def test_weights_are_knobs_that_switch_terms_on_and_off_live(tmp_path: Path) -> None:
    job, _ = channelled(tmp_path, Distillation(maximum=2.0), Supervised(), max_steps=7)
    line = FakeLink({2: ("channel.distill", 0.5), 4: ("channel.distill", 0.0), 5: ("channel.sft", 0.25)})
    attach(job, link=line)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    specs = {spec.name: spec for spec in run.actuators}
    assert (specs["channel.distill"].low, specs["channel.distill"].high) == (0, 2)
    assert (specs["channel.sft"].low, specs["channel.sft"].value) == (0, 0)
    metrics = {metric.name for metric in run.metrics}
    assert {f"channel/{name}{suffix}" for name in ("distill", "sft") for suffix in ("", "/weight")} <= metrics
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    seen = [
        {k: v for k, v in observation.metrics.items() if k.startswith("channel/")} for observation in line.observed()
    ]
    assert [set(row) for row in seen] == [
        set(), set(), {"channel/distill", "channel/distill/weight"}, {"channel/distill", "channel/distill/weight"},
        set(), {"channel/sft", "channel/sft/weight"}, {"channel/sft", "channel/sft/weight"},
    ]  # fmt: skip
    assert seen[2]["channel/distill"] > 0 and seen[2]["channel/distill/weight"] == 0.5
    assert seen[5]["channel/sft"] > 0 and seen[5]["channel/sft/weight"] == 0.25


def test_a_swap_inside_a_generation_changes_what_is_distilled(tmp_path: Path) -> None:
    job, teachers = channelled(tmp_path, Distillation(1.0), num_iterations=3, max_steps=4, learning_rate=1e-9)
    line = FakeLink({2: ("teacher.active", "two")})
    attach(job, link=line, teachers=teachers)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted) and "teacher.active" in {spec.name for spec in run.actuators}
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    first, second, third, _ = line.series("channel/distill")
    assert first == pytest.approx(second, rel=1e-4) and third != pytest.approx(second, rel=1e-2)


def test_without_a_teacher_decisions_and_starts_are_refused(tmp_path: Path) -> None:
    job = grpo(tmp_path, ChannelTrainer, channels=[Distillation()])
    line = FakeLink({1: ("channel.distill", 0.5)})
    attach(job, link=line)
    job.train()
    (receipt,) = line.receipts()
    assert receipt.status == "rejected" and "has no teacher" in receipt.reason and receipt.after == 0
    assert len(line.observed()) == 3
    with pytest.raises(ConfigError, match="has no teacher"):
        grpo(tmp_path, ChannelTrainer, channels=[Distillation(0.1)]).train()


@pytest.mark.parametrize("sharded", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_sharded_policies_are_refused_only_with_channels(tmp_path: Path, sharded: str) -> None:
    class Sharded(ChannelTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            setattr(self, sharded, True)

    assert grpo(tmp_path, Sharded).channels == ()
    with pytest.raises(ConfigError, match="policy twice per step"):
        grpo(tmp_path, Sharded, channels=[Supervised()])


def test_the_base_model_of_an_adapter_is_the_default_teacher(tmp_path: Path) -> None:
    job = grpo(tmp_path, ChannelTrainer, channels=[Distillation(1.0)], peft_config=lora())
    with torch.no_grad():
        for name, parameter in job.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    base: Any = llama()
    below = {
        k.removeprefix("base_model.model.").replace(".base_layer", ""): v for k, v in job.model.state_dict().items()
    }
    base.load_state_dict({k: v for k, v in below.items() if "lora" not in k})
    inputs = batch(job)
    actual = gradient(job, inputs)
    assert actual.norm() > 1e-4
    torch.testing.assert_close(actual, explicit(job, inputs, base.eval(), 1.0, 1.0), rtol=1e-3, atol=1e-6)


def test_skipped_groups_are_not_distilled(tmp_path: Path) -> None:
    def judge(prompts: list[str], **_: Any) -> list[float | None]:
        return [None if prompt == ROWS[0]["prompt"] else index / 8 for index, prompt in enumerate(prompts)]

    committee = Committee({"judge": judge})
    job, _ = channelled(tmp_path, *both(distill=0.5, sft=0.5), rewards=[committee])
    attach(job, link=FakeLink(), committee=committee)
    inputs = batch(job)
    assert inputs["completion_mask"][:4].sum() == 0 < inputs["completion_mask"][4:].sum()
    assert int(job.channels[0].tally(job.model, inputs)[1]) == int(inputs["completion_mask"].sum())
    assert int(job.channels[1].tally(job.model, inputs)[1]) == 16, "a reference needs no judge"
    assert gradient(job, inputs).norm() > 1e-3
