"""GRPO over policies: TRL's loss, the teacher's pull, what no one scored, knobs and checkpoints."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import tiny_grpo
from tests.support.attached import THIRD_PARTY, llama
from tests.support.policies import KINDS, conditions, gradient, liked, made, trainer
from tests.unit.learner.test_attach_trl import tokenizer
from transformers import set_seed

from oven_core.errors import ConfigError, TeacherRefusedError
from oven_core.protocol.messages import RunStarted
from oven_learner.policies import (
    CausalPolicy,
    DiffusionPolicy,
    Policy,
    PolicyTrainer,
    PolicyTrainerConfig,
    Samples,
    TemporalUNet,
    checkpoint,
)
from oven_learner.policies.grpo_objective import compute_objective
from oven_learner.rewards import Committee
from oven_learner.teachers import TeacherConfig
from oven_learner.teachers.memory_forms import memory_bytes
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Replayed(CausalPolicy):
    """Gives again what TRL's trainer has sampled, and what its rewards were given."""

    recorded: list[dict[str, Any]]

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        batch = self.recorded.pop(0) if n > 2 else self.recorded[0]  # two: the check before the first step
        names = ("prompt_ids", "prompt_mask", "completion_ids")
        texts = self.tokenizer.batch_decode(batch["completion_ids"], skip_special_tokens=True)
        whole = Samples({name: batch[name] for name in names}, batch["completion_mask"].float(), texts)
        return whole if n > 2 else whole.select(torch.arange(n))


@pytest.mark.parametrize(
    ("loss_type", "beta", "updates"), [("dapo", 0.1, 2), ("grpo", 0.1, 1), ("grpo", 0.0, 5), ("dapo", 0.0, 1)]
)
def test_the_loss_matches_trl_over_ten_updates(tmp_path: Path, loss_type: str, beta: float, updates: int) -> None:
    settings: dict[str, Any] = {"loss_type": loss_type, "beta": beta, "num_iterations": updates, "max_steps": 10}
    job = tiny_grpo.grpo(tmp_path, lr_scheduler_type="constant", logging_steps=1, epsilon_high=0.3, **settings)
    set_seed(3)
    model, recorded = llama(), []  # TRL's own weights, without its fused head
    assert all(map(torch.equal, model.parameters(), job.model.parameters()))
    generate = job._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        batch = generate(inputs)
        recorded.append({name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)})
        return batch

    job._generate_and_score_completions = watched
    job.train()
    policy = Replayed(model, tokenizer(), max_tokens=4)
    policy.recorded = recorded

    def both(completions: list[str], **_: Any) -> list[float | None]:
        pairs = zip(tiny_grpo.vowels(completions), tiny_grpo.early(completions), strict=True)
        return [(loss or 0.0) + (penalty or 0.0) for loss, penalty in pairs]

    ours = PolicyTrainer(
        policy,
        {"both": both},
        ["a", "b"],
        PolicyTrainerConfig(
            max_steps=10,
            group_size=4,
            conditions_per_step=2,
            learning_rate=0.01,
            loss_type=loss_type,  # type: ignore[arg-type]
            beta=beta,
            epsilon_high=0.3,
            updates_per_batch=updates,
        ),
    )
    line = FakeLink()
    ours.train(link=line)
    entries = [entry for entry in job.state.log_history if "loss" in entry]
    losses = line.series("loss")
    assert len(losses) == 10 and losses == pytest.approx([entry["loss"] for entry in entries], abs=1e-5)
    if beta:
        assert line.series("kl") == pytest.approx([entry["kl"] for entry in entries], abs=1e-5)
    for name, parameter in job.model.named_parameters():
        torch.testing.assert_close(dict(model.named_parameters())[name], parameter, rtol=0, atol=1e-4)


def still(job: PolicyTrainer) -> Any:
    """A batch whose advantages are 0: what is left of its gradient is the KL term's."""
    batch = job.rollout(0, job.conditions)
    batch.advantages = torch.zeros_like(batch.advantages)
    return batch


def beside(kind: str, seed: int) -> Policy:
    """A policy near to the one that is trained: no ratio leaves the range in which it has a gradient."""
    policy = made(kind)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))
    return policy


@pytest.mark.parametrize("strategy", ["resident", "offload", "hybrid"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kl_gradient_uses_the_active_teacher(
    kind: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    teachers = {"small": beside(kind, 1), "strong": beside(kind, 2)}
    dims: dict[str, Any] = {"kind": "diffusion", "joint_dim": 2, "intent_dim": 3} if kind == "diffusion" else {}
    described = {
        name: TeacherConfig(name=name, model=copy.deepcopy(model), strategy=strategy, **dims)
        for name, model in teachers.items()
    }
    job = trainer(kind, beta=0.3, teachers=described)
    storage = "offload" if strategy == "offload" else "resident"  # a hybrid one has room here
    assert [job.teachers.memory_form(name) for name in described] == [storage, storage]
    assert all(
        (memory_bytes(job.teachers[name]) < memory_bytes(teachers[name]) / 2) == (storage == "offload")
        for name in described
    )
    policy, batch = job.policy, still(job)

    def pull(beta: float) -> torch.Tensor:
        policy.zero_grad()
        job.beta = beta
        job.backward(batch)
        return gradient(policy)

    def by_hand(name: str) -> torch.Tensor:
        policy.zero_grad()
        now = policy.step_log_probs(batch.samples, batch.conditions)
        away = teachers[name].step_log_probs(batch.samples, batch.conditions).detach() - now
        term = (away.exp() - away - 1) * (now - now.detach()).exp()
        (0.3 * (term * batch.samples.mask).sum() / batch.samples.mask.sum()).backward()
        return gradient(policy)

    small = pull(0.3)
    assert float(small.norm()) > 1e-4
    torch.testing.assert_close(small, by_hand("small"))
    assert not bool(pull(0.0).any()), "exactly 0"
    job.teachers.swap("strong")
    torch.testing.assert_close(pull(0.3), by_hand("strong"))
    assert not torch.allclose(small, gradient(policy))
    assert all(p.grad is None and not p.requires_grad for name in described for p in job.teachers[name].parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_within_a_batch_continues_bit_for_bit(kind: str, tmp_path: Path) -> None:
    def job() -> PolicyTrainer:
        teachers = {"small": made(kind, 1), "strong": made(kind, 2)}
        settings = {"max_steps": 7, "updates_per_batch": 2, "rows_per_pass": 3}
        return trainer(kind, teachers=teachers, beta=0.05, output_dir=tmp_path, save_steps=5, **settings)

    straight = job()
    line = FakeLink({2: ("teacher.active", "strong"), 1: ("optimizer.lr_scale", 0.5), 3: ("grpo.beta", 0.1)})
    straight.train(link=line)
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-5", "checkpoint-7"]
    resumed = job()
    before = torch.get_rng_state()
    checkpoint.load(resumed, tmp_path / "checkpoint-5")
    assert (resumed.teachers.active, resumed.step) == ("strong", 5) and resumed.beta == pytest.approx(0.1)
    later = FakeLink()
    resumed.train(link=later)
    assert torch.equal(torch.get_rng_state(), before)
    assert [seen.step for seen in later.observed()][-1] == 7
    assert later.observed()[-1].metrics["learning_rate"] == line.observed()[-1].metrics["learning_rate"]
    assert all(map(torch.equal, straight.policy.parameters(), resumed.policy.parameters()))


def test_damaged_or_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    trainer("gaussian", output_dir=tmp_path, max_steps=2).train(link=FakeLink())
    folder = checkpoint.newest(tmp_path)
    assert folder is not None and folder.name == "checkpoint-2"
    pytest.importorskip("diffusers")
    with pytest.raises(ConfigError, match="from another model"):
        checkpoint.load(trainer("diffusion"), folder)
    (folder / checkpoint.STATE_FILE).write_bytes(b"cut")
    with pytest.raises(ConfigError, match="has 3 bytes"):
        checkpoint.load(trainer("gaussian"), folder)


def faulty(bad_rows: Sequence[int], value: float | None = math.nan) -> Any:
    """`liked`, with this value for some rows of every batch."""

    def reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
        rewards = liked(completions)
        return [value if row in bad_rows else reward for row, reward in enumerate(rewards)]

    return reward


@pytest.mark.parametrize(("value", "counted"), [(math.nan, "unscored"), (None, "unscored"), (math.inf, "infinite")])
def test_groups_without_a_reward_are_skipped_and_counted(value: float | None, counted: str) -> None:
    job = trainer("gaussian", {"liked": faulty([1], value)}, max_steps=1, conditions_per_step=3, beta=0.1)
    line = FakeLink()
    job.train(link=line)
    metrics = line.observed()[-1].metrics
    assert metrics[f"rewards/{counted}"] == 1 and metrics["committee/skipped_groups"] == 1
    assert metrics["committee/skipped_steps"] == 0
    # The step is that of a batch that never had the group.
    separate = trainer("gaussian", max_steps=1, conditions_per_step=3, beta=0.1)
    whole = separate.rollout(0, separate.conditions)
    index = torch.arange(4, 12)
    whole.samples, whole.advantages = whole.samples.select(index), whole.advantages[index]
    whole.conditions = whole.conditions[4:]
    separate.batch = whole
    separate.train(link=FakeLink())
    assert all(map(torch.equal, job.policy.parameters(), separate.policy.parameters()))


def test_unscored_steps_train_nothing_and_hold_the_run() -> None:
    rewards = {"liked": faulty(range(8)), "other": faulty(range(8), None)}
    job = trainer("gaussian", rewards, max_steps=3, hold_after=2)
    before = copy.deepcopy(job.policy.state_dict())

    class Watched(FakeLink):
        def send(self, make: Any) -> None:
            super().send(make)
            message: Any = self.sent[-1]
            if getattr(message, "actuator", "") == "run.hold":
                assert job.client is not None
                job.client.request_stop("seen")

    line = Watched()
    job.train(link=line)
    assert all(torch.equal(before[name], value) for name, value in job.policy.state_dict().items())
    metrics = line.observed()[-1].metrics
    assert metrics["committee/skipped_steps"] == 1 and "loss" not in metrics and "reward" not in metrics
    assert [receipt.actuator for receipt in line.receipts()] == ["run.hold"]
    assert "in 2 consecutive steps (no finite reward 16)" in line.receipts()[0].reason


def test_a_committee_judges_and_its_weights_are_a_knob() -> None:
    def low(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [1 - (reward or 0.0) for reward in liked(completions)]

    job = trainer("causal", Committee({"liked": liked, "low": low}, weights={"low": 0.25}, quorum=1))
    line = FakeLink({2: ("reward.weights", {"liked": 0.5, "low": 0.5})})
    job.train(link=line)
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert {"rewards/liked/mean", "rewards/low/mean", "committee/agreement"} <= line.observed()[1].metrics.keys()


def test_actuators_have_trls_names_and_roll_back() -> None:
    teachers = {"small": made("gaussian", 1), "strong": made("gaussian", 2)}
    job = trainer("gaussian", teachers=teachers, beta=0.1, updates_per_batch=2, epsilon_high=0.3, max_steps=6)
    line = FakeLink({2: ("grpo.epsilon", 0.1), 3: ("run.rollback", 0.0), 5: ("teacher.active", "strong")})
    job.train(link=line)
    started = line.sent[0]
    assert isinstance(started, RunStarted)
    names = {spec.name for spec in started.actuators}
    assert {
        "grpo.beta",
        "grpo.epsilon",
        "grpo.epsilon_high",
        "teacher.active",
        "optimizer.lr_scale",
        "grad.clip",
    } <= names
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    assert [seen.step for seen in line.observed()] == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert job.teachers.active == "strong" and job.step == 6


def test_a_reward_rises_and_columns_reach_the_rewards() -> None:
    rows = [{"prompt": intent, "wanted": sum(intent)} for intent in conditions("gaussian")]

    def near(prompts: list[Any], completions: list[Any], wanted: list[float], **_: Any) -> list[float | None]:
        assert prompts[0] in conditions("gaussian")
        return [-abs(float(done.mean()) - goal) for done, goal in zip(completions, wanted, strict=True)]

    job = trainer("gaussian", {"near": near}, rows, max_steps=80, group_size=8, conditions_per_step=3)
    line = FakeLink()
    job.train(link=line)
    rewards = line.series("reward")
    assert sum(rewards[-10:]) > sum(rewards[:10]) / 2  # negative: less than half as far


class Silent(Policy):
    """Samples, and has no gradient."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.weight, self.detached = torch.nn.Parameter(torch.zeros(2)), detached

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        drawn = torch.randn(len(conditions) * n, 2)
        return Samples({"drawn": drawn}, torch.ones_like(drawn), list(drawn))

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> torch.Tensor:
        drawn = samples.tensors["drawn"]
        return (drawn * self.weight).detach() if self.detached else (drawn.requires_grad_() * 2)


@pytest.mark.parametrize("detached", [True, False])
def test_log_probabilities_without_a_gradient_are_refused_before_the_first_step(detached: bool) -> None:
    with pytest.raises(ConfigError, match="has no gradient" if detached else "the policy's trainable parameters"):
        trainer("gaussian", policy=Silent(detached))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 5}, r"4 × 2 numbers in 5 steps.*4 × 2 numbers and 4 steps"),
        ({"eta": 0.5}, "different noise"),
        ({"trained": 80}, "different noise"),
    ],
)
def test_diffusion_teachers_need_the_policys_noise_schedule(options: dict[str, Any], message: str) -> None:
    library, job = pytest.importorskip("diffusers"), trainer("diffusion", beta=0.1)

    def teacher(trained: int = 40, **options: Any) -> TeacherConfig:
        scheduler = library.DDIMScheduler(num_train_timesteps=trained, clip_sample=False)
        network = TemporalUNet(3, 4, 2, channels=(8, 16))
        model = DiffusionPolicy(network, scheduler, **{"frames": 4, "dims": 2, "steps": 4, **options})
        return TeacherConfig(name=f"of {trained} {options}", kind="diffusion", model=model, joint_dim=2, intent_dim=3)

    with pytest.raises(TeacherRefusedError, match=message):
        job.teachers.register(teacher(**options))
    alike = teacher()
    job.teachers.register(alike)
    job.teachers.swap(alike.name)
    assert job.teachers.active == alike.name and not any(p.requires_grad for p in alike.model.parameters())


def test_overflowing_ratios_are_constant_without_a_gradient() -> None:
    now = torch.tensor([[0.0, 3000.0, -3000.0]], requires_grad=True)
    loss, _, _ = compute_objective(
        now,
        torch.zeros(1, 3),
        torch.zeros(1, 3),
        torch.tensor([-1.0]),
        torch.ones(1, 3),
        beta=0.1,
        epsilon=(0.2, 0.2),
        row_weight=torch.ones(1, 1),
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert bool(loss.isfinite()) and now.grad is not None
    assert now.grad[0, 1:].tolist() == [0.0, 0.0] and float(now.grad[0, 0]) != 0


def test_rewards_of_another_length_are_refused() -> None:
    def short(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return liked(completions)[:-1]

    with pytest.raises(ConfigError, match="'short' returned 7 numbers for 8 samples"):
        trainer("gaussian", {"short": short}).train(link=FakeLink())
