"""Work before a run: it reports its progress from the start, and an interruption changes no bit of its result."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oven_recipes import preparation
from oven_recipes.activations.activation_store import ActivationStore
from oven_recipes.environments.repair_task_generator import TrustedTests
from oven_recipes.grpo import sorting_policy
from oven_recipes.grpo.settings import SortingSettings
from oven_recipes.motion.settings import MotionSettings
from oven_recipes.motion.training import new_policy
from oven_recipes.motion.warm_up import load_or_warm_up
from oven_recipes.oracle.settings import OracleSettings
from oven_recipes.oracle.small_model import Schedule, Sizes, build_model, build_tokenizer, load_small_model
from oven_recipes.oracle.supervised_stage import Subject, benchmark_prompts, run_supervised_stage
from oven_recipes.oracle.user_model import fresh_adapter
from oven_recipes.pretrain.corpus import File, SubCorpus
from oven_recipes.pretrain.tokens import tokenize
from oven_recipes.repair.settings import RepairSettings
from oven_recipes.repair.warm_policy import warm_policy
from oven_runs.home.run_folder import PREPARING

SMALL: Any = {"hidden": 16, "layers": 1, "heads": 2, "ffn": 16, "sft_batch": 4, "sft_steps": 6}


def grpo(cache: Path) -> Any:
    return sorting_policy.warm_policy(SortingSettings(**SMALL), sorting_policy.build_tokenizer(), 1, cache)


def repair(cache: Path) -> Any:
    settings = RepairSettings(
        **SMALL, demonstrations=40, sft_eval_every=2, sft_tasks=4, warmup_target=1.0, max_completion_length=64
    )
    return warm_policy(settings, 1, cache, TrustedTests())[0]


def motion(cache: Path) -> Any:
    settings = MotionSettings(embedding="words", hidden=8, frames=8, warm_steps=6, warm_batch=4)
    return load_or_warm_up(new_policy(settings, 1), settings, (0.1, 0.6), 1, cache)


def oracle(cache: Path) -> Any:
    schedule = Schedule(steps=6, rows=2, learning_rate=0.01)
    return load_small_model(build_tokenizer(), 1, cache, Sizes(hidden=16, ffn=16, layers=2, heads=2), schedule)[0]


def supervised(cache: Path) -> Any:
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = build_model(Sizes(hidden=16, ffn=16, layers=2, heads=2), tokenizer)
    prompts = benchmark_prompts(9, random.Random(1))
    subject = Subject(model, tokenizer, "small", (0, 1), ActivationStore(cache / "activations"))
    subject.capture(prompts, 20)
    policy = fresh_adapter(model, 2)
    settings = OracleSettings(sft_steps=6, sft_batch=4, sft_lr=0.01, lora_rank=2)
    run_supervised_stage(policy, subject, prompts, settings, "spread", 1, cache)
    return policy


WARM_UPS: list[Callable[[Path], Any]] = [grpo, repair, motion, oracle, supervised]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21 asks for it
@pytest.mark.parametrize("warm_up", WARM_UPS)
def test_a_warm_up_reports_from_the_start_and_continues_with_the_same_bits(
    warm_up: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    expected = warm_up(tmp_path / "uninterrupted").state_dict()
    assert any(message.startswith(PREPARING) and message.endswith("step 0 of 6") for message in caplog.messages)

    caplog.clear()
    save = preparation.save

    def save_and_interrupt(file: Path, progress: dict[str, Any]) -> None:
        save(file, progress)
        if progress["step"] == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "save", save_and_interrupt)
        patch.setattr(preparation, "INTERVAL_S", 0.0)
        patch.setattr(preparation, "MAX_SAVING_SHARE", math.inf)
        with pytest.raises(KeyboardInterrupt):
            warm_up(tmp_path / "interrupted")
    caplog.clear()
    weights = warm_up(tmp_path / "interrupted").state_dict()
    assert "step 4 of 6" in caplog.text and "step 0 of" not in caplog.text
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert not list((tmp_path / "interrupted").glob("*.unfinished"))


def test_progress_that_is_damaged_or_cannot_be_saved_costs_only_the_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preparation, "INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"x" * 100)
    assert [step for step, _ in preparation.resumable_steps("warm-up", range(2), 2, (), damaged)] == [0, 1]
    (tmp_path / "file").write_text("")
    unwritable = tmp_path / "file" / "unfinished"
    assert [step for step, _ in preparation.resumable_steps("warm-up", range(2), 2, (), unwritable)] == [0, 1]
    assert "could not be saved" in caplog.text


def test_tokenizing_reports_from_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tokenize([SubCorpus("a", (File("a", "a.txt", "one text"),), ())], 300, tmp_path)
    stages = ["training the tokenizer: sub-corpus 0 of 1", "tokenizing: text 0 of 1"]
    assert caplog.messages == [PREPARING + stage for stage in stages]
