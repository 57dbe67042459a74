"""What a trainer is given by mistake: said at attach, or counted and shown; never a crash in the middle of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Sequential, equal, trainer, weights
from tests.support.tiny_grpo import ROWS, grpo, vowels
from tests.unit.learner.test_attach_trl import tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import TrainerCallback

from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def attached(job: Any) -> FakeLink:
    line = FakeLink()
    attach(job, link=line)
    job.train()
    end = line.sent[-1]
    assert isinstance(end, RunEnded) and end.reason == "completed"
    return line


def refused(job: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attach(job, link=FakeLink())
    assert job.state.global_step == 0


def test_a_tokenizer_with_ids_that_the_model_does_not_embed_is_refused(tmp_path: Path) -> None:
    words = tokenizer()
    words.add_tokens(["<more>"])
    attach(grpo(tmp_path, processing_class=words), link=FakeLink())  # which no prompt uses
    rows = [*ROWS, {"prompt": "a<more>", "reference": "b"}]
    message = r"the prompt of row 8 has the token id 32 \('<more>'\), but the model embeds only 32 ids"
    refused(grpo(tmp_path, rows=rows, processing_class=words), message)
    words = tokenizer()
    words.add_special_tokens({"pad_token": "<padding>"})
    message = r"the tokenizer's pad_token has the token id 32 .*resize_token_embeddings"
    refused(grpo(tmp_path, processing_class=words), message)


def test_prompts_without_tokens_are_refused(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "", "reference": "b"}]
    refused(grpo(tmp_path, rows=rows), r"1 of 9 prompts are empty \(rows 8\)")
    talk = [{"prompt": [{"role": "user", "content": "a"}]}, {"prompt": []}]
    refused(grpo(tmp_path, rows=talk * 8), r"8 of 16 prompts are empty \(rows 1, 3, 5, 7, 9, …\)")
    words = tokenizer()
    words.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    attach(grpo(tmp_path, rows=rows, processing_class=words), link=FakeLink())  # it begins every text by itself


def test_rewards_that_are_not_numbers_are_counted_and_the_run_continues(tmp_path: Path) -> None:
    calls: list[int] = []

    def odd(completions: list[str], **_: Any) -> list[float | None]:
        calls.append(1)
        first: list[float | None] = [math.nan, None] if len(calls) == 1 else [math.inf, -1.0]
        return [*first, *(0.1 * i for i in range(len(completions) - 2))] if len(calls) < 3 else vowels(completions)

    line = attached(grpo(tmp_path, rewards=[odd]))
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    assert {"rewards/unscored", "rewards/infinite"} <= {metric.name for metric in run.metrics}
    assert line.series("rewards/unscored") == [2, 0, 0]
    assert line.series("rewards/infinite") == [0, 1, 0]
    assert math.isfinite(line.series("reward")[0]) and all(map(math.isfinite, line.series("loss")))


def test_equal_rewards_are_shown_as_groups_without_a_gradient(tmp_path: Path) -> None:
    def flat(completions: list[str], **_: Any) -> list[float | None]:
        return [1.0] * len(completions)

    job = grpo(tmp_path, rewards=[flat])
    begin = weights(job)
    line = attached(job)
    assert line.series("frac_reward_zero_std") == [1, 1, 1]
    assert line.series("grad_norm") == [0, 0, 0] and line.series("reward_std") == [0, 0, 0]
    assert equal(begin, weights(job))


def test_rewards_of_another_trainer_are_not_read(tmp_path: Path) -> None:
    """A2PO has a method of the same name, which returns one number per completion."""

    class Summing(Sequential):
        reward_funcs = (vowels,)

        def _calculate_rewards(self) -> torch.Tensor:
            return torch.tensor([0.5, 1.0])

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return super().training_step(*args, **kwargs) * self._calculate_rewards().mean()

    line = attached(trainer(tmp_path, cls=Summing))
    run = line.sent[0]
    assert isinstance(run, RunStarted) and len(line.series("loss")) == 12
    assert "rewards/unscored" not in {metric.name for metric in run.metrics}


def test_a_rollback_makes_vllm_load_the_restored_weights(tmp_path: Path) -> None:
    """TRL sends vLLM its weights when the step's number is another than when it last did: after a rollback it may be
    the same, with other weights."""
    job = grpo(tmp_path)
    line = FakeLink({2: ("run.rollback", 0.0)})
    attach(job, link=line)
    loaded: list[int] = []

    class AsTrlDoes(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            loaded.append(job._last_loaded_step)
            job._last_loaded_step = state.global_step

    job._last_loaded_step = -1
    job.add_callback(AsTrlDoes())
    job.train()
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert loaded == [-1, 0, -1, 0, 1]
