"""`channel.sdpo` beside GRPO's loss: as TRL has it, and no trace of it at weight 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, llama, weights
from tests.support.key_game import game
from tests.support.tiny_grpo import ROWS, batch, differentiated, gradient, grpo, lora, losses
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunStarted
from oven_learner.hf import trainer_rollback
from oven_learner.hf.attach import attach
from oven_learner.losses import ChannelTrainer, Hints, SelfDistillation
from oven_learner.losses.loss_channel import Rollouts
from oven_learner.losses.self_distillation import HINTED
from oven_learner.testing import FakeLink

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in THIRD_PARTY),
    pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning"),
]

FEEDBACK = [row | {"feedback": f"think of {row['reference']}"} for row in ROWS]


@pytest.mark.parametrize("made", [grpo, game], ids=["completions", "environment"])
def test_twenty_steps_at_weight_0_equal_trl_bit_for_bit(tmp_path: Path, made: Any) -> None:
    ends = []
    for cls in (GRPOTrainer, ChannelTrainer):
        own = {"channels": [SelfDistillation(0.0)]} if cls is ChannelTrainer else {}
        job = made(tmp_path / cls.__name__, cls, max_steps=20, logging_steps=1, **own)
        job.train()
        ends.append((losses(job), weights(job), torch.get_rng_state(), job.state.log_history))
    (loss, trained, state, logs), (loss_too, trained_too, state_too, _) = ends
    assert len(loss) == 20 and loss == loss_too
    assert all(torch.equal(a, b) for a, b in zip(trained, trained_too, strict=True))
    assert torch.equal(state, state_too)
    assert made is grpo or max(entry.get("tools/call_frequency", 0) for entry in logs) > 0.5, "no tool was called"


def test_the_term_has_a_gradient_only_while_it_is_on(tmp_path: Path) -> None:
    channel = SelfDistillation(0.0)
    job = game(tmp_path, ChannelTrainer, channels=[channel])
    job.model.train()
    job.current_gradient_accumulation_steps = 1
    rows = [job.train_dataset[0]] * 4 + [job.train_dataset[1]] * 4

    def generated() -> dict[str, Any]:
        inputs: dict[str, Any] = job._generate_and_score_completions(rows)
        return inputs | {"advantages": torch.zeros(8)}

    inputs = generated()
    assert inputs["tool_mask"].min() == 0, "what a tool wrote is in the batch"
    assert HINTED not in inputs
    state = torch.get_rng_state()
    assert not gradient(job, inputs).any()
    assert torch.equal(torch.get_rng_state(), state)
    channel.set_weight(0.2)
    inputs = generated()
    once = gradient(job, inputs)
    channel.set_weight(0.6)
    torch.testing.assert_close(gradient(job, inputs), 3 * once, rtol=1e-4, atol=1e-7)
    assert once.norm() > 1e-4
    channel.set_weight(0.0)
    assert not gradient(job, inputs).any()


@pytest.mark.parametrize(("topk", "beta"), [(5, 0.5), (5, 0.0), (32, 1.0)])
def test_self_distillation_loss_and_gradient_match_trl(tmp_path: Path, topk: int, beta: float) -> None:
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    model = llama()
    model.config.max_position_embeddings = 512  # a hint has some length
    oracle: Any = SDPOTrainer(
        model=model,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=SDPOConfig(
            output_dir=str(tmp_path), num_generations=4, per_device_train_batch_size=8, max_completion_length=4,
            teacher_model_kind="live", distillation_mode="topk_logits", distillation_topk=topk,
            distillation_alpha=beta, distillation_add_tail=True, temperature=1.3, **COMMON,
        ),
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer(),
    )  # fmt: skip
    channel = SelfDistillation(1.0, teacher="live", hints=Hints(sibling=False), topk=topk, beta=beta)
    job = grpo(tmp_path, ChannelTrainer, channels=[channel], rows=FEEDBACK, temperature=1.3)
    job.model.config.max_position_embeddings = 512
    job.model.load_state_dict(oracle.model.state_dict())
    inputs = batch(job, rows=FEEDBACK)
    inputs["completion_mask"][:] = 1  # as many tokens in each, so that a mean over completions is one over tokens
    inputs["old_per_token_logps"] = torch.full(inputs["completion_ids"].shape, -4.5)  # ratios on both sides of the clip
    hinted = [torch.tensor(tokens) for tokens in inputs[HINTED]]
    assert all(len(prompt) > len(ROWS[0]["prompt"]) for prompt in hinted)
    prompt = torch.nn.utils.rnn.pad_sequence(hinted, batch_first=True, padding_side="left")
    marks = [torch.ones_like(prompt) for prompt in hinted]
    mask = torch.nn.utils.rnn.pad_sequence(marks, batch_first=True, padding_side="left")
    theirs = inputs | {
        "teacher_input_ids": torch.cat([prompt, inputs["completion_ids"]], 1),
        "teacher_attention_mask": torch.cat([mask, inputs["completion_mask"]], 1),
    }
    logits = oracle._compute_teacher_student_logits(oracle.model, oracle.model, theirs)
    wanted = oracle._compute_self_distillation_loss(oracle.model, theirs, logits)
    tally = channel.tally(job.model, inputs)
    assert (tally.total / tally.token_count).item() == pytest.approx(wanted.item(), abs=1e-5)
    torch.testing.assert_close(
        differentiated(job, tally.total / tally.token_count), differentiated(oracle, wanted), rtol=1e-4, atol=1e-5
    )


def test_completions_are_gathered_only_for_sibling_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several ranks that is a collective over all completions, once a step."""
    gathered: list[Any] = []

    def gather(value: Any) -> Any:
        gathered.append(value)
        return value

    monkeypatch.setattr("oven_learner.losses.self_distillation.gather_object", gather)
    made = Rollouts([{"feedback": "no"}] * 2, ["a"] * 2, [[1], [2]], torch.ones(2), [[]] * 2, None, 2)
    alone = Hints(sibling=False).build_prompts(made, str, 0)
    assert not gathered and "no" in alone[0] and "[2]" not in alone[0]
    assert "[2]" in Hints().build_prompts(made, str, 0)[0] and gathered == [[[1], [2]]]


def test_the_weight_is_a_knob_with_gauges(tmp_path: Path) -> None:
    job = game(tmp_path, ChannelTrainer, channels=[SelfDistillation(0.0)], max_steps=3)
    line = FakeLink({1: ("channel.sdpo", 0.5)})
    attach(job, link=line)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted) and "channel.sdpo" in {spec.name for spec in run.actuators}
    assert {"channel/sdpo/accuracy", "channel/sdpo/margin"} <= {metric.name for metric in run.metrics}
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    seen = [{key for key in observation.metrics if key.startswith("channel/")} for observation in line.observed()]
    assert not seen[0] and {"channel/sdpo", "channel/sdpo/margin"} <= seen[1]


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """The moving average is the one that it would have had."""
    options: dict[str, Any] = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    options |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    straight = game(tmp_path, ChannelTrainer, channels=[SelfDistillation(0.5)], **options)
    straight.train()
    resumed = game(tmp_path, ChannelTrainer, channels=[SelfDistillation(0.5)], **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert all(torch.equal(a, b) for a, b in zip(weights(straight), weights(resumed), strict=True))
    for expected, actual in zip(straight.channels, resumed.channels, strict=True):
        state, kept_too = expected.module.state_dict(), actual.module.state_dict()
        assert all(torch.equal(state[name], kept_too[name]) for name in state if isinstance(state[name], torch.Tensor))
    _, copy = trainer_rollback.take_snapshot(straight)
    average: Any = straight.channels[0].module
    weight = next(average.buffers())
    before = weight.clone()
    weight.add_(1)
    trainer_rollback.restore_snapshot(straight, copy)
    assert torch.equal(weight, before), "a rollback brings it back, too"


def test_the_moving_average_restarts_when_the_weight_rises(tmp_path: Path) -> None:
    channel = SelfDistillation(0.5, rate=0.25, topk=4)
    job = grpo(tmp_path, ChannelTrainer, channels=[channel])
    average: Any = channel.module
    name, parameter = next(iter(job.model.named_parameters()))
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter += 1
    channel.follow()
    torch.testing.assert_close(average.weights(job.model)[name], before + 0.25)
    channel.set_weight(0.0)
    channel.follow()
    torch.testing.assert_close(average.weights(job.model)[name], before + 0.25)
    channel.set_weight(0.1)
    torch.testing.assert_close(average.weights(job.model)[name], before + 1)


def test_with_an_adapter_only_the_adapter_is_averaged(tmp_path: Path) -> None:
    hinted = SelfDistillation(0.5, hints=Hints(sibling=False), topk=8)
    model = llama()
    model.config.max_position_embeddings = 512
    job = grpo(
        tmp_path, ChannelTrainer, channels=[hinted], model=model, rows=FEEDBACK, peft_config=lora(),
        logging_steps=1, max_steps=2,
    )  # fmt: skip
    average: Any = hinted.module
    assert {name.split(".")[-3] for name in average.weights(job.model)} == {"lora_A", "lora_B"}
    job.train()
    first, second = (entry for entry in job.state.log_history if "channel/sdpo" in entry)
    assert first["channel/sdpo/hinted"] == 1 and second["channel/sdpo"] > 0


def test_wrong_options_are_refused_with_their_limits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"channel.sdpo: weight -0.1"):
        SelfDistillation(-0.1)
    with pytest.raises(ConfigError, match="policy twice per step"):
        _sharded(tmp_path, SelfDistillation())
    for options, message in (
        ({"topk": 0}, "topk 0"), ({"beta": 2}, "beta 2"), ({"rate": 0}, "rate 0"), ({"clip": 0}, "clip 0"),
        ({"teacher": "base"}, "'live' or 'ema'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            SelfDistillation(**options)
    with pytest.raises(ConfigError, match="no source of hints"):
        Hints(sibling=False, feedback=None)
    faulty = game(tmp_path, ChannelTrainer, channels=[SelfDistillation(0.1, hints=Hints(template="{tests}"))])
    with pytest.raises(ConfigError, match=r"the template uses 'tests', but the row only has"):
        faulty.train()


def _sharded(folder: Path, channel: Any) -> None:
    class Sharded(ChannelTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.is_fsdp_enabled = True

    grpo(folder, Sharded, channels=[channel])


def test_five_steps_with_the_channel_lower_the_loss(tmp_path: Path) -> None:
    job = game(
        tmp_path, ChannelTrainer, channels=[SelfDistillation(0.5)], max_steps=5, num_iterations=5, logging_steps=1
    )
    job.train()
    seen = [entry for entry in job.state.log_history if "channel/sdpo" in entry]
    whole = [entry["loss"] for entry in seen]
    assert len(whole) == 5 and whole[-1] < whole[0]
    assert seen[0]["channel/sdpo"] > 0 and seen[0]["channel/sdpo/hinted"] > 0.5
