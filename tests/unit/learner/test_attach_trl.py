"""attach on TRL's trainers: the same contract, with their metrics of every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, llama, weights
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Trainer, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from oven_core.protocol.messages import RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

COMMON: dict[str, Any] = {
    "max_steps": 6, "learning_rate": 0.01, "logging_steps": 4, "save_strategy": "no", "report_to": [],
    "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "seed": 3, "bf16": False,
    "gradient_checkpointing": False,
}  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: n for n, word in enumerate(["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz0123"[:29]])}
    made = Tokenizer(WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def grpo(folder: Path, data: Dataset | None = None, held_out: Any = None, **settings: Any) -> GRPOTrainer:
    set_seed(3)

    def vowels(completions: list[str], **_: Any) -> list[float | None]:
        return [sum(letter in "aeiou" for letter in text) / 4 for text in completions]

    def silent(completions: list[str], **_: Any) -> list[float | None]:
        return [None] * len(completions)

    return GRPOTrainer(
        model=settings.pop("model", None) or llama(),
        reward_funcs=[vowels, silent],
        args=GRPOConfig(
            output_dir=str(folder), num_generations=4, per_device_train_batch_size=4, max_completion_length=4,
            **(COMMON | settings),
        ),
        train_dataset=data or Dataset.from_list([{"prompt": letter} for letter in "abcdefgh"]),
        eval_dataset=held_out,
        processing_class=tokenizer(),
    )  # fmt: skip


def sft(folder: Path, held_out: Any = None, **settings: Any) -> SFTTrainer:
    set_seed(3)
    return SFTTrainer(
        model=llama(),
        args=SFTConfig(output_dir=str(folder), per_device_train_batch_size=2, max_length=16, **(COMMON | settings)),
        train_dataset=Dataset.from_list([{"text": text} for text in ("abcdef", "bcdefg", "cdefgh", "defghi") * 4]),
        eval_dataset=held_out,
        processing_class=tokenizer(),
    )


OWN = {
    grpo: ("reward", "reward_std", "rewards/vowels/mean", "entropy", "completions/mean_length", "frac_reward_zero_std"),
    sft: ("entropy", "mean_token_accuracy"),
}


@pytest.mark.parametrize("made", OWN)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_step_is_published_and_nothing_changes(tmp_path: Path, made: Any, accumulation: int) -> None:
    plain: Trainer = made(tmp_path / "plain", logging_steps=1, gradient_accumulation_steps=accumulation)
    plain.train()
    wanted = [entry for entry in plain.state.log_history if "loss" in entry]
    attached: Trainer = made(tmp_path / "attached", gradient_accumulation_steps=accumulation)
    line = FakeLink()
    attach(attached, link=line)
    attached.train()
    assert [seen.step for seen in line.observed()] == [1, 2, 3, 4, 5, 6]
    for metric in ("loss", "grad_norm", "learning_rate", *OWN[made]):
        assert line.series(metric) == pytest.approx([entry[metric] for entry in wanted], rel=1e-5), metric
    assert equal(weights(plain), weights(attached)), "attaching changed the training"
    run, end = line.sent[0], line.sent[-1]
    assert isinstance(run, RunStarted) and isinstance(end, RunEnded)
    assert set(OWN[made]) <= {metric.name for metric in run.metrics}
    assert end.reason == "completed"


@pytest.mark.parametrize("made", OWN)
def test_decisions_act(tmp_path: Path, made: Any) -> None:
    job: Trainer = made(tmp_path, lr_scheduler_type="constant")
    line = FakeLink({2: ("optimizer.lr_scale", 0.5), 4: ("run.rollback", 0.0), 5: ("run.stop", None)})
    attach(job, link=line)
    job.train()
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    assert line.series("learning_rate") == pytest.approx([0.01] * 2 + [0.005] * 3)
    assert [seen.step for seen in line.observed()] == [1, 2, 3, 4, 1]
    assert (tmp_path / "checkpoint-1").is_dir()
    end = line.sent[-1]
    assert isinstance(end, RunEnded) and end.reason == "stopped"
