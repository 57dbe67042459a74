"""What is kept while a policy writes is what a pass over its completions computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY
from tests.unit.learner.test_generation_ahead import PROMPTS, Judges, made

from oven_learner.rewards import sampling_log_probs

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Passes:
    """Counts the passes that TRL makes over completions."""

    def __init__(self, trainer: Any) -> None:
        self.count = 0
        self._compute = trainer._get_per_token_logps_and_entropies
        trainer._get_per_token_logps_and_entropies = self

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.count += 1
        return self._compute(*args, **more)


def policy(folder: Path, **settings: Any) -> Any:
    """A trainer whose completions a function scores."""
    trainer, _ = made(folder, Judges(), ahead=0, **settings)
    trainer.reward_funcs = [lambda completions, **_: [float(len(text)) for text in completions]]
    return trainer


def batch(trainer: Any) -> dict[str, Any]:
    """One generation for prompts of unequal length, with the old policy's log-probabilities."""
    trainer.num_iterations = 2
    trainer.model.train()
    rows = [{"prompt": letter * (1 + n % 3)} for n, letter in enumerate(PROMPTS[:2]) for _ in range(4)]
    found: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return found


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7, "max_completion_length": 12}, {"top_k": 3}, {"repetition_penalty": 1.3}],
)
def test_they_are_those_of_a_pass_over_the_completions(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Rows that end early, prompts of unequal length, a temperature; what only filters samples changes nothing."""
    trainer = policy(tmp_path, **settings)
    passes = Passes(trainer)
    with sampling_log_probs.recording(trainer):
        made_now = batch(trainer)
    assert passes.count == 0
    ids = torch.cat([made_now["prompt_ids"], made_now["completion_ids"]], dim=1)
    mask = torch.cat([made_now["prompt_mask"], made_now["completion_mask"]], dim=1)
    kept = made_now["completion_ids"].shape[1]
    with torch.no_grad():
        whole, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, kept)
    seen = made_now["completion_mask"].bool()
    assert seen.any(dim=1).all()
    torch.testing.assert_close(made_now["old_per_token_logps"][seen], whole[seen], atol=1e-5, rtol=0)
    assert passes.count == 1, "and it is TRL's own again"


@pytest.mark.parametrize("reason", ["bfloat16", "dropout", "no cache", "a setting that drops"])
def test_where_they_may_differ_the_pass_is_made(tmp_path: Path, reason: str) -> None:
    trainer = policy(tmp_path)
    match reason:
        case "bfloat16":
            trainer.model.to(torch.bfloat16)
        case "dropout":
            trainer.model.add_module("drop", torch.nn.Dropout(0.1))
        case "no cache":
            trainer.generation_config.use_cache = False
        case _:
            trainer.model.config.attention_dropout = 0.1
    passes = Passes(trainer)
    with sampling_log_probs.recording(trainer):
        batch(trainer)
    assert passes.count == 1
    batch(trainer)
    assert passes.count == 2


def test_a_generation_that_fails_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = policy(tmp_path)
    passes = Passes(trainer)
    with pytest.raises(RuntimeError, match="out of memory"), sampling_log_probs.recording(trainer):
        raise RuntimeError("out of memory")
    batch(trainer)
    assert passes.count == 1
