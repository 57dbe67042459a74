"""The committee inside TRL's trainer: what nobody scored leaves no trace in weights, optimizer and schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, llama
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from tests.unit.learner.test_rewards_committee import Remote
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_core.protocol.committee_requests import ScoreRequest
from oven_core.protocol.messages import Observation, RunEnded, RunStarted, Value
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.hf.attach import attach
from oven_learner.rewards import Committee
from oven_learner.rewards.unscored_groups import MICRO_BATCH_MEANS, ROW_MEANS, TOKEN_MEANS, UnscoredGroupSkipper
from oven_learner.rewards.verdicts import Verdict
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Judge:
    """Scores the share of early letters; silent for the prompts and the calls that the test names."""

    def __init__(self, silent: Callable[[int, str], bool] = lambda call, prompt: False) -> None:
        self.silent = silent
        self.calls = 0

    def __call__(self, prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
        self.calls += 1
        return [
            None if self.silent(self.calls, prompt) else sum(letter in "abcdefghijklmn" for letter in text) / 4
            for prompt, text in zip(prompts, completions, strict=True)
        ]


def grpo(
    folder: Path, judge: Judge, *, hold_after: int = 100, remote: Remote | None = None, **settings: Any
) -> tuple[GRPOTrainer, Committee]:
    set_seed(3)
    committee = Committee({"judge": judge}, hold_after=hold_after, remote=remote)
    model: Any = llama()
    if settings.get("beta"):
        model.save_pretrained(folder / "policy")
        model = str(folder / "policy")
    defaults = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 4, "weight_decay": 0.1}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[committee],
        args=GRPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=Dataset.from_list([{"prompt": letter} for letter in "abcdefgh"]),
        processing_class=tokenizer(),
    )
    return trainer, committee


def state(trainer: Any) -> list[torch.Tensor]:
    """Everything that a step moves."""
    tensors = [weight.detach().clone() for weight in trainer.model.state_dict().values()]
    for of_one in trainer.optimizer.optimizer.state_dict()["state"].values():
        tensors += [torch.as_tensor(value).clone() for value in of_one.values()]
    scheduler = trainer.lr_scheduler.state_dict()
    return [*tensors, torch.tensor([scheduler["last_epoch"], *scheduler["_last_lr"]], dtype=torch.float64)]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Remembering(FakeLink):
    """Keeps the trainer's state at the end of every step."""

    def __init__(self, plan: Mapping[int, tuple[str, Value]] | None = None) -> None:
        super().__init__(plan)
        self.trainer: Any = None
        self.states: list[list[torch.Tensor]] = []

    def send(self, make: Any) -> None:
        super().send(make)
        if isinstance(self.sent[-1], Observation):
            self.states.append(state(self.trainer))


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "twice": {"num_iterations": 2},
    "split": {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    "reference": {"beta": 0.3},
    "no_clipping": {"max_grad_norm": 0.0},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_outage_leaves_everything_as_it_was_and_training_goes_on(tmp_path: Path, shape: str) -> None:
    outage = range(3, 5)  # generations
    settings = SHAPES[shape] | {"max_steps": 8, "lr_scheduler_type": "linear"}
    trainer, committee = grpo(tmp_path, Judge(lambda call, _: call in outage), **settings)
    line = Remembering()
    line.trainer = trainer
    attach(trainer, committee=committee, link=line)
    trainer.train()
    seen = line.observed()
    skipped = [bool(observation.metrics["committee/skipped_steps"]) for observation in seen]
    steps_of_one = {"twice": 2, "split": 2}.get(shape, 1)
    assert skipped == [step // steps_of_one + 1 in outage for step in range(8)]
    for step in range(1, 8):
        assert same(line.states[step], line.states[step - 1]) == skipped[step], f"step {step + 1}"
    for observation, gone in zip(seen, skipped, strict=True):
        absent = {"loss", "grad_norm", "entropy", "optim/grad_momentum_cos", "kl"} & observation.metrics.keys()
        assert not (gone and absent), "what was not measured is absent, not 0"
        assert gone or {"loss", "grad_norm", "entropy"} <= observation.metrics.keys()
        assert not gone or "reward" not in observation.metrics
    assert trainer.state.global_step == 8, "a step that is skipped counts"


def test_without_the_committee_the_same_outage_moves_the_weights(tmp_path: Path) -> None:
    """What the test above would not see if the trainer stood still by itself."""
    set_seed(3)
    judge = Judge(lambda call, _: call >= 3)
    trainer = GRPOTrainer(
        model=llama(),
        reward_funcs=[judge],
        args=GRPOConfig(
            output_dir=str(tmp_path), num_generations=4, per_device_train_batch_size=8, max_completion_length=4,
            **(COMMON | {"max_steps": 4}),
        ),
        train_dataset=Dataset.from_list([{"prompt": letter} for letter in "abcdefgh"]),
        processing_class=tokenizer(),
    )  # fmt: skip
    line = Remembering()
    line.trainer = trainer
    attach(trainer, link=line)
    trainer.train()
    assert not same(line.states[3], line.states[2])


def batch_of(trainer: Any, prompts: str) -> dict[str, Any]:
    """A batch with the same completions for the same prompt, whatever stands beside it."""
    generator = torch.Generator().manual_seed(11)
    fixed = {letter: torch.randint(3, 32, (4, 4), generator=generator).tolist() for letter in "abcdefgh"}
    rows = [{"prompt": letter} for letter in prompts for _ in range(4)]
    ends = {letter: i % 4 for i, letter in enumerate("abcdefgh")}

    def generate(letters: list[str]) -> Any:
        seen: dict[str, int] = {}
        ids = []
        for letter in letters:
            row = seen[letter] = seen.get(letter, -1) + 1
            ids.append(fixed[letter][row][: 4 - (ends[letter] if row % 2 else 0)])
        prompt_ids = [trainer.processing_class(letter)["input_ids"] for letter in letters]
        texts = trainer.processing_class.batch_decode(ids)
        return prompt_ids, ids, None, texts, None, {}, None, None

    trainer._generate = generate
    made: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return made


def gradient(trainer: Any, batches: list[dict[str, Any]]) -> torch.Tensor:
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = len(batches)
    for batch in batches:
        trainer._compute_loss(trainer.model, batch).backward()
    return torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


def ready(folder: Path, silent: str, **settings: Any) -> Any:
    trainer, committee = grpo(folder, Judge(lambda _, prompt: prompt in silent), **settings)
    UnscoredGroupSkipper(trainer, committee).install()
    assert trainer.model is not None
    trainer.model.train()
    return trainer


@pytest.mark.parametrize("loss_type", TOKEN_MEANS + ROW_MEANS + MICRO_BATCH_MEANS)
@pytest.mark.parametrize("extra", [{}, {"beta": 0.4}, {"beta": 0.4, "num_iterations": 2}, {"scale_rewards": "batch"}])
def test_the_rest_of_a_batch_trains_as_it_would_alone(tmp_path: Path, loss_type: str, extra: dict[str, Any]) -> None:
    settings = {"loss_type": loss_type, "per_device_train_batch_size": 12} | extra
    if loss_type == "luspo":
        settings["importance_sampling_level"] = "sequence"
    partly = ready(tmp_path / "partly", "b", **settings)
    alone = ready(tmp_path / "alone", "", **(settings | {"per_device_train_batch_size": 8}))
    actual = gradient(partly, [batch_of(partly, "abc")])
    expected = gradient(alone, [batch_of(alone, "ac")])
    assert expected.abs().max() > 1e-4
    assert torch.allclose(actual, expected, rtol=1e-3, atol=1e-6)
    whole = ready(tmp_path / "whole", "", **settings)
    assert not torch.allclose(gradient(whole, [batch_of(whole, "abc")]), expected, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("loss_type", TOKEN_MEANS + ROW_MEANS)
def test_the_rest_of_several_micro_batches_trains_as_it_would_alone(tmp_path: Path, loss_type: str) -> None:
    settings = {"loss_type": loss_type, "beta": 0.4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    partly = ready(tmp_path / "partly", "b", **settings)
    alone = ready(tmp_path / "alone", "", **(settings | {"gradient_accumulation_steps": 2}))

    def parts(batch: dict[str, Any], count: int) -> list[dict[str, Any]]:
        size = len(batch["prompt_ids"]) // count
        cut = [slice(i * size, (i + 1) * size) for i in range(count)]
        return [{k: v[part] if getattr(v, "ndim", 0) else v for k, v in batch.items()} for part in cut]

    actual = gradient(partly, parts(batch_of(partly, "abc"), 3))
    expected = gradient(alone, parts(batch_of(alone, "ac"), 2))
    assert torch.allclose(actual, expected, rtol=1e-3, atol=1e-6)


def test_a_committee_of_one_trains_as_the_function_alone_would(tmp_path: Path) -> None:
    ends = []
    for name in ("bare", "committee"):
        judge = Judge()
        trainer, committee = grpo(tmp_path / name, judge, max_steps=4)
        if name == "bare":
            trainer.reward_funcs[0] = judge
        attach(trainer, committee=committee if name == "committee" else None, link=FakeLink())
        trainer.train()
        ends.append(state(trainer))
    assert same(*ends)


def test_the_run_holds_after_some_steps_says_why_and_goes_on_when_resumed(tmp_path: Path) -> None:
    class Operator(FakeLink):
        """Resumes once the run is held."""

        held: list[str]

        def receive(self) -> Any:
            client = attachment.client
            if client is not None and client.hold_reason and len(self.held) < client.tick // 4:
                self.held.append(client.hold_reason)
                self.incoming.append(OperatorCommand(id=f"resume {len(self.held)}", action="resume"))
            return super().receive()

    trainer, committee = grpo(tmp_path, Judge(lambda call, _: 2 <= call <= 6), hold_after=3, max_steps=8)
    line = Operator()
    line.held = []
    attachment = attach(trainer, committee=committee, link=line)
    trainer.train()
    assert len(line.held) == 1, "steps 2, 3 and 4; 5 and 6 are but two more"
    assert "in 3 steps (not_applicable 6)" in line.held[0] and "resume" in line.held[0]
    receipt, resumed = line.receipts()
    assert (receipt.actuator, receipt.status, receipt.tick, receipt.reason) == ("run.hold", "applied", 4, line.held[0])
    assert (resumed.command, resumed.status) == ("resume 1", "applied")
    assert [seen.metrics["committee/skipped_steps"] for seen in line.observed()] == [0, 1, 1, 1, 1, 1, 0, 0]
    end = line.sent[-1]
    assert isinstance(end, RunEnded) and end.reason == "completed"


def test_what_a_batch_measures_is_announced_and_published(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, committee = grpo(tmp_path, Judge(lambda call, prompt: prompt in "ab"), max_steps=6)
    line = FakeLink()
    attach(trainer, committee=committee, link=line)
    trainer.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    announced = {metric.name for metric in run.metrics}
    assert "reward.weights" not in {spec.name for spec in run.actuators}, "one member: nothing to weigh"
    seen = line.observed()
    assert {
        name for o in seen for name in o.metrics if name.startswith(("committee/", "rewards/judge"))
    } <= announced | {"rewards/judge/std"}
    assert sum(o.metrics["committee/skipped_groups"] for o in seen) == sum(
        o.metrics.get("committee/abstain/not_applicable", 0) for o in seen
    )
    assert 0 < sum(o.metrics["committee/skipped_groups"] for o in seen) < 12
    assert all(o.metrics.get("frac_reward_zero_std", 0) <= 1 for o in seen)
    assert "All reward functions returned None" not in caplog.text, "TRL would log the prompt"


def test_reliability_is_restored_from_checkpoints(tmp_path: Path) -> None:
    def early(request: ScoreRequest) -> Verdict:
        return tuple(sum(letter < "o" for letter in completion.text) / 4 for completion in request.completions)

    def late(request: ScoreRequest) -> Verdict:
        return tuple(sum(letter >= "o" for letter in completion.text) / 4 for completion in request.completions)

    learnt = []
    for steps in (3, 4):
        remote = Remote(good=early, bad=late)
        saved: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "max_steps": steps}
        trainer, committee = grpo(tmp_path, Judge(), remote=remote, **saved)
        attach(trainer, committee=committee, link=FakeLink())
        trainer.train(resume_from_checkpoint=True if steps == 4 else None)
        learnt.append({name: groups for name, (_, groups) in committee.state_dict()["reliability"].items()})
    assert 0 < learnt[0]["bad"] < learnt[1]["bad"], "it went on from there"
    assert learnt[1]["bad"] > 4, "of one step it would have been two groups"


def test_unsupported_trainers_are_refused(tmp_path: Path) -> None:
    trainer, committee = grpo(tmp_path, Judge())
    with pytest.raises(ConfigError, match="only reward function"):
        UnscoredGroupSkipper(trainer, Committee({"other": Judge()}))
    trainer.loss_type = "new"
    with pytest.raises(ConfigError, match="normalisation"):
        UnscoredGroupSkipper(trainer, committee)
