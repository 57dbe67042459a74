"""Warm-up cache and trainer, at sizes that take a second."""

from pathlib import Path

import pytest

pytest.importorskip("trl")

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oven_learner.hf.knobs.mixture import LAG_CHUNKS
from oven_recipes.grpo.settings import GAMED_WEIGHT, GrpoSettings, parse_start
from oven_recipes.grpo.sorting_policy import build_tokenizer, warm_policy
from oven_recipes.grpo.training_job import build
from oven_recipes.training_runner import Job
from oven_recipes.weights_cache import WEIGHTS_FILE

TINY = GrpoSettings(
    lengths=(1, 2),
    train_prompts=20,
    eval_prompts=4,
    hidden=16,
    layers=1,
    heads=2,
    ffn=32,
    sft_steps=60,
    sft_batch=16,
    sft_learning_rate=1e-2,
    max_steps=4,
    prompts_per_step=4,
    group_size=4,
    eval_every=2,
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def make(tmp_path: Path, cache: Path, settings: GrpoSettings = TINY) -> Job:
    return build(settings, parse_start("tuned", 1, settings), 1, tmp_path, cache)


def weights(model: torch.nn.Module | None) -> torch.Tensor:
    assert model is not None
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]).clone()


def test_a_warm_policy_is_cached_and_a_corrupt_entry_rebuilt(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    state = torch.get_rng_state()
    trained = weights(warm_policy(TINY, tokenizer, 1, tmp_path))
    assert torch.equal(torch.get_rng_state(), state)
    (entry,) = tmp_path.iterdir()  # nothing temporary is left behind
    file = entry / WEIGHTS_FILE
    whole, stamp = file.read_bytes(), file.stat().st_mtime_ns
    assert torch.equal(weights(warm_policy(TINY, tokenizer, 1, tmp_path)), trained)
    assert file.stat().st_mtime_ns == stamp
    for broken in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(broken)
        assert torch.equal(weights(warm_policy(TINY, tokenizer, 1, tmp_path)), trained)
        assert file.read_bytes() == whole
    file.unlink()
    assert torch.equal(weights(warm_policy(TINY, tokenizer, 1, tmp_path)), trained)


def test_evaluation_leaves_no_trace_in_the_run(tmp_path: Path, cache: Path) -> None:
    often, never = make(tmp_path, cache), make(tmp_path, cache)

    class Evaluate(TrainerCallback):
        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
        ) -> None:
            often.evaluate()

    often.trainer.add_callback(Evaluate())
    torch.manual_seed(5)
    before = often.evaluate()
    model, state = often.trainer.model, torch.get_rng_state()
    assert model is not None
    for mode in (True, False):
        model.train(mode)
        assert often.evaluate() == before
        assert torch.equal(torch.get_rng_state(), state) and model.training is mode
    assert set(before) == {"eval/accuracy", "eval/accuracy/len1", "eval/accuracy/len2"}
    ends = []
    for job in (often, never):
        torch.manual_seed(5)
        job.trainer.train()
        ends.append(weights(job.trainer.model))
    assert torch.equal(*ends)


def test_the_policy_gets_a_gradient_and_moves(tmp_path: Path, cache: Path) -> None:
    job = make(tmp_path, cache)
    start = weights(job.trainer.model)
    job.trainer.train()
    logs = job.trainer.state.log_history
    assert max(log["grad_norm"] for log in logs if "grad_norm" in log) > 1e-3
    assert not torch.equal(weights(job.trainer.model), start)
    assert all({"reward", "reward/len1", "reward/len2", "entropy"} <= set(log) for log in logs[:-1])
    assert max(log["reward"] for log in logs[:-1]) > 0


def test_a_change_of_mixture_acts_after_the_documented_lag(tmp_path: Path, cache: Path) -> None:
    job = make(tmp_path, cache, TINY.model_copy(update={"max_steps": 6}))

    class Switch(TrainerCallback):
        def on_step_begin(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
        ) -> None:
            if state.global_step == 1:  # step 2 is about to run
                assert job.mixture is not None
                job.mixture.set({"len1": 0.0, "len2": 1.0})

    job.trainer.add_callback(Switch())
    job.trainer.train()
    easy = [log["step"] for log in job.trainer.state.log_history if "reward/len1" in log]
    assert easy == list(range(1, 2 + LAG_CHUNKS))


def test_only_a_start_that_stages_it_has_the_rule_that_can_be_gamed(tmp_path: Path, cache: Path) -> None:
    tuned = make(tmp_path, cache)
    assert tuned.committee is not None and "smooth" not in tuned.committee.members
    gamed = build(TINY, parse_start("drill:gamed-rule", 1, TINY), 1, tmp_path, cache)
    assert gamed.committee is not None
    weights = {name: weight for name, weight in gamed.committee.weights.items() if weight}
    assert weights == pytest.approx({"exact": 1 - GAMED_WEIGHT, "smooth": GAMED_WEIGHT})
    assert gamed.committee.quorum == 1
