"""Loss channels of transformers' Trainer: off they are nothing, and on they are exact whatever the trainer does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, llama, tokens, trainer, weights
from tests.unit.learner.test_attach_trl import tokenizer
from transformers import LlamaForCausalLM, Trainer, set_seed
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from oven_core.errors import ConfigError
from oven_learner.hf import trainer_rollback
from oven_learner.losses import (
    Channel,
    MultiToken,
    TextChannels,
    TextTrainer,
    TokenWeighted,
)

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SCORES = {token: token / 32 for token in range(3, 20)}


def job(folder: Path, *channels: Channel, plain: bool = False, **settings: Any) -> Any:
    set_seed(3)
    cls: Any = Trainer if plain else partial(TextTrainer, channels=channels)
    settings = {"max_steps": 4, "logging_steps": 1, **settings}
    made = trainer(folder, model=llama(), data=tokens(32), cls=cls, **settings)
    made.eval_dataset = tokens(8)
    return made


def both(kg: float = 0.0, mtp: float = 0.0) -> list[Channel]:
    return [TokenWeighted(SCORES, kg), MultiToken(mtp)]


DOCUMENTED: dict[str, dict[str, Any]] = {
    "as it is": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2},
    "smoothed": {"label_smoothing_factor": 0.1},
    "saved": {"save_strategy": "steps", "save_steps": 2},
}


@pytest.mark.parametrize("documented", DOCUMENTED)
def test_inactive_channels_equal_transformers_bit_for_bit(tmp_path: Path, documented: str) -> None:
    ends = []
    for plain in (True, False):
        made = job(tmp_path / str(plain), *both(), plain=plain, **DOCUMENTED[documented])
        made.train()
        logs = [{k: v for k, v in entry.items() if not k.endswith(("runtime", "per_second"))}
                for entry in made.state.log_history]  # fmt: skip
        files = [path.read_bytes() for path in sorted(tmp_path.glob(f"{plain}/*/*.safetensors"))]
        ends.append((logs, weights(made), torch.get_rng_state(), files))
    (logs, trained, generator, files), (logs_too, trained_too, generator_too, files_too) = ends
    assert logs == logs_too and equal(trained, trained_too) and torch.equal(generator, generator_too)
    assert files == files_too and bool(files) == (documented == "saved")


def test_gradients_of_two_halves_equal_the_whole_batch(tmp_path: Path) -> None:
    whole = job(tmp_path, *both(0.5, 0.3), max_steps=1, logging_steps=1)
    halves = job(
        tmp_path, *both(0.5, 0.3), max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2
    )  # fmt: skip
    for made in (whole, halves):
        for channel in made.channels:  # the mean over a micro-batch has to be that over the step
            if isinstance(channel, TokenWeighted):
                channel.scores = dict.fromkeys(range(32), 1.0)
                channel._score_by_token = torch.ones(32)  # noqa: SLF001
        made.train()
    entries = [made.state.log_history[0] for made in (whole, halves)]
    for name in ("loss", "grad_norm", "channel/kg", "channel/mtp"):
        assert entries[0][name] == pytest.approx(entries[1][name], rel=1e-5), name


def test_evaluation_uses_only_the_trainers_own_loss(tmp_path: Path) -> None:
    losses = [job(tmp_path, *both(*weights)).evaluate()["eval_loss"] for weights in ((0.0, 0.0), (0.5, 0.3))]
    assert losses[0] == losses[1]


def test_checkpoints_contain_a_plain_model_and_resume(tmp_path: Path) -> None:
    straight = job(tmp_path, *both(0.5, 0.3), save_strategy="steps", save_steps=2)
    straight.train()
    resumed = job(tmp_path, *both(0.5, 0.3))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert equal(weights(straight), weights(resumed)), "without a controller, too"
    assert equal(*([*made.channels[1].module.state_dict().values()] for made in (straight, resumed)))
    model_class: Any = LlamaForCausalLM
    loaded, loading_info = model_class.from_pretrained(tmp_path / "checkpoint-4", output_loading_info=True)
    assert not loading_info["unexpected_keys"] and equal([*loaded.state_dict().values()], weights(straight))
    without_channels = job(tmp_path, TokenWeighted(SCORES))
    with pytest.raises(ConfigError, match=r"checkpoint-2 has the state of channel.mtp, .* no channels;"):
        without_channels.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_rollback_copies_include_the_head(tmp_path: Path) -> None:
    made = job(tmp_path, MultiToken(0.3), max_steps=2)
    made.train()
    _, state = trainer_rollback.take_snapshot(made)
    head = made.channels[0].module
    then = [value.clone() for value in head.state_dict().values()]
    with torch.no_grad():
        head.down += 1
    trainer_rollback.restore_snapshot(made, state)
    assert equal(then, [*head.state_dict().values()])
    assert trainer_rollback.snapshot_size(made) == 12 * sum(
        p.numel() for p in [*made.model.parameters(), *head.parameters()]
    )


class Supervision(TextChannels, SFTTrainer):
    """TRL's fused loss gives out logits without a gradient."""


def test_channels_work_in_trls_sft_trainer(tmp_path: Path) -> None:
    ends = []
    texts = [{"input_ids": row["input_ids"].tolist()} for row in tokens(8)]
    for weight in (0.0, 0.5):
        set_seed(3)
        made = Supervision(
            model=llama(), train_dataset=Dataset.from_list(texts),
            args=SFTConfig(output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], logging_steps=1,
                           disable_tqdm=True, dataloader_pin_memory=False, learning_rate=0.01, bf16=False),
            processing_class=tokenizer(), channels=both(weight, weight),
        )  # fmt: skip
        made.train()
        ends.append((weights(made), made.state.log_history[0]))
    assert not equal(ends[0][0], ends[1][0]) and ends[1][1]["channel/kg/weight"] == 0.5
    alone = ends[0][1]["loss"]
    assert ends[1][1]["loss"] == pytest.approx(
        alone + 0.5 * (ends[1][1]["channel/kg"] + ends[1][1]["channel/mtp"]), rel=1e-4
    )
    assert ends[1][1]["grad_norm"] > 1.2 * ends[0][1]["grad_norm"]


def test_rows_too_short_for_a_term_add_nothing_and_publish_nothing(tmp_path: Path) -> None:
    made = job(tmp_path, *both(0.5, 0.3), max_steps=1)
    made.train_dataset = [{"input_ids": row["input_ids"][:2], "labels": torch.tensor([20, 21])} for row in tokens(8)]
    made.train()
    assert not [name for name in made.state.log_history[0] if name.startswith("channel/")]


def test_a_second_training_keeps_the_head(tmp_path: Path) -> None:
    made = job(tmp_path, MultiToken(0.3), max_steps=2)
    made.train()
    made.train()
    held = [parameter for group in made.optimizer.param_groups for parameter in group["params"]]
    assert len(held) == len({id(parameter) for parameter in held})
