"""What `bake` turns down before anything is started, and which judge a swap means."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support import policies
from tests.support.attached import THIRD_PARTY, llama
from tests.support.tiny_grpo import vowels
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import oven_learner as oven
from oven_agents.shipped.teacher import Teacher
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec, RunStarted
from oven_learner.baking import text_training
from oven_learner.baking.child_stack import StackAddress
from oven_learner.baking.policy_training import OvenPolicyTrainer
from oven_learner.baking.training_handle import Oven, find_member
from oven_learner.policies import PolicyTrainerConfig
from oven_learner.testing import FakeLink
from oven_runs.home import relaunch
from oven_runs.settings.committee_settings import MemberSettings

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

GOOD: dict[str, Any] = {"prompts": ["a", "b"], "rules": vowels, "total_steps": 3}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": "abc"}, "must be a list"),
        ({"group_size": 1}, "group_size=1"),
        ({"rules": None}, "nothing scores"),
        ({"modality": "texts"}, "did you mean 'text'"),
        ({"num_generations": 4}, "is called group_size= in bake"),
        ({"beta": 0.1}, "needs a teacher"),
        ({"teachers": [{"name": "big", "model_name": "x"}], "teacher": "bog"}, "did you mean 'big'"),
        ({"teachers": ["big"]}, "teachers=, entry 1: 'big' is not a mapping"),
        ({"teachers": "nowhere.yaml"}, "cannot read the file of teachers nowhere.yaml"),
        ({"modality": "motion"}, "must be a Policy, but this is a LlamaForCausalLM"),
        ({"settings": {"rules": {"autonomie": "auto"}}}, "autonomie"),
    ],
)
def test_invalid_arguments_are_refused_before_the_first_step(
    wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    for name in ("OVEN_URL", "OVEN_RUN", "OVEN_MODE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        oven.bake(llama(), tokenizer(), **(GOOD | wrong))


@pytest.mark.parametrize("unfit", ["name", "large", "endless"])
def test_unsuitable_tokenizers_are_refused(unfit: str) -> None:
    words: Any = tokenizer()
    if unfit == "large":
        words.add_tokens([f"word{number}" for number in range(400)])
    if unfit == "endless":
        words.pad_token = words.eos_token = None
    message = {"name": "is a str", "large": "ids up to", "endless": "neither a pad token nor an end token"}[unfit]
    with pytest.raises(ConfigError, match=message):
        text_training.check_tokenizer(llama(), "gpt2" if unfit == "name" else words)


def test_ranks_do_not_start_a_stack_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVEN_URL", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="every rank would start"):
        oven.bake(llama(), tokenizer(), **GOOD)


def test_it_trains_as_the_same_trainer_does_with_attach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty steps, bit for bit."""
    monkeypatch.setenv("OVEN_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OVEN_RUN", "there")
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(text_training, "attach", partial(oven.attach, link=FakeLink()))
    steps = {"max_completion_length": 4, "save_strategy": "no", "learning_rate": 0.01, **COMMON}
    steps = {key: value for key, value in steps.items() if key not in ("max_steps", "beta")}
    set_seed(3)
    baked = oven.bake(
        llama(),
        tokenizer(),
        prompts=[*"abcdefgh"],
        rules=vowels,
        group_size=4,
        prompts_per_step=2,
        total_steps=20,
        **steps,
    )
    baked.run_sync()

    set_seed(3)
    judges = oven.Committee({"vowels": vowels}, seed=42, description="Answers the prompts.")
    config = GRPOConfig(
        output_dir=str(tmp_path),
        **text_training.config_args(4, 2, 20, steps),
    )
    rows = Dataset.from_list([{"prompt": letter} for letter in "abcdefgh"])
    job: Any = GRPOTrainer(
        model=llama(), processing_class=tokenizer(), reward_funcs=[judges], args=config, train_dataset=rows
    )
    oven.attach(job, committee=judges, link=FakeLink())
    job.train()
    assert job.state.global_step == baked.trainer.state.global_step == 20
    assert all(map(torch.equal, job.model.parameters(), baked.trainer.model.parameters()))
    fresh = llama()
    assert not all(map(torch.equal, job.model.parameters(), fresh.parameters())), "it learnt"


def test_a_verifier_compares_with_the_teachers_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OVEN_RUN", "there")
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    link = FakeLink()
    monkeypatch.setattr(text_training, "attach", partial(oven.attach, link=link))

    def lengths(texts: Sequence[str]) -> torch.Tensor:
        counts = torch.tensor([[1.0 + text.count("a"), float(len(text))] for text in texts])
        return torch.nn.functional.normalize(counts, dim=-1)

    monkeypatch.setattr(text_training, "load_sentence_encoder", lambda name, device: lengths)
    with pytest.raises(ConfigError, match="pass teachers="):
        oven.bake(llama(), tokenizer(), **GOOD, use_verifier=True)
    baked = oven.bake(
        llama(), tokenizer(), **GOOD, use_verifier=True, teachers={"small": llama(), "big": llama()},
        group_size=4, prompts_per_step=2, max_completion_length=4, save_strategy="no",
        evaluate=lambda: {"eval/right": 0.5},
        metrics=[MetricSpec(name="eval/right", better="up", held_out=True, ceiling=1.0)],
    )  # fmt: skip
    assert baked.committee.weights == {"vowels": pytest.approx(0.9), "verifier": pytest.approx(0.1)}
    baked.run_sync()
    seen = [
        observation.metrics["rewards/verifier/mean"] for observation in link.observed() if "loss" in observation.metrics
    ]
    assert len(seen) == 3 and all(0.5 < value <= 1 for value in seen)
    run = next(body for body in link.sent if isinstance(body, RunStarted))
    assert Teacher().cannot_fire(run) is None, "both readings have a ceiling"
    model = llama()
    baked.attach_to_model(model)
    steered: Any = model
    assert baked.teachers is not None and steered.teacher is baked.teachers["small"]
    assert steered.verifier(prompts=["a"], completions=["b"])[0] is not None


def test_a_policy_in_a_resumed_run_continues_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """Bit for bit, and with a teacher that was registered by then."""

    def job(resumed: bool = False) -> OvenPolicyTrainer:
        again = {relaunch.RESUME_FROM: relaunch.LATEST} if resumed else {}
        config = PolicyTrainerConfig(max_steps=8, save_steps=5, group_size=4, conditions_per_step=2, beta=0.1)
        address = StackAddress("one", tmp_path, {"OVEN_RUN": "one"} | again)
        trainer = OvenPolicyTrainer(address, policies.made("gaussian"), {"liked": policies.liked}, policies.INTENTS,
                             config, teachers={"first": policies.made("gaussian", 1)}, output_dir=tmp_path)  # fmt: skip
        trainer.teachers.add("late", policies.made("gaussian", 2))
        return trainer

    straight = job()
    straight.train(link=FakeLink({2: ("teacher.active", "late")}))
    shutil.rmtree(tmp_path / "checkpoint-8")
    resumed = job(resumed=True)
    line = FakeLink()
    resumed.train(link=line)
    assert [seen.step for seen in line.observed()] == [6, 7, 8] and resumed.teachers.active == "late"
    assert all(map(torch.equal, straight.policy.parameters(), resumed.policy.parameters()))


def test_settings_are_refused_for_an_existing_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OVEN_RUN", "there")
    with pytest.raises(ConfigError, match="the environment already names a stack"):
        oven.bake(llama(), tokenizer(), **GOOD, run="mine")


async def test_run_sync_would_block_an_event_loop() -> None:
    baked = Oven.__new__(Oven)
    with pytest.raises(ConfigError, match=r"await oven\.run\(\)"):
        baked.run_sync()
    assert asyncio.get_running_loop().is_running()


MEMBERS = {
    "sonnet": MemberSettings(provider="claude", model="sonnet-5", role="critic"),
    "seek": MemberSettings(provider="deepseek", model="chat", role="critic"),
    "tricks": MemberSettings(provider="claude", model="haiku-5", role="adversary"),
}


def test_a_swap_means_the_member_in_the_role_or_by_its_name() -> None:
    assert find_member(MEMBERS, "adversary", None) == "tricks"
    assert find_member(MEMBERS, "critic", "seek") == "seek"
    with pytest.raises(ConfigError, match="sonnet, seek all have the role critic; choose one"):
        find_member(MEMBERS, "critic", None)
    with pytest.raises(UnknownNameError, match="no role named 'critics'; did you mean 'critic'"):
        find_member(MEMBERS, "critics", None)
    with pytest.raises(UnknownNameError, match="no member of the committee named 'seeker'; did you mean 'seek'"):
        find_member(MEMBERS, "critic", "seeker")
