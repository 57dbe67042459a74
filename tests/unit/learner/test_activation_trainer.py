"""An oracle's GRPO: vectors in every pass, its KL term's gradient, plain TRL without vectors, and what is refused."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.activation_rows import Watch, Watched, until
from tests.support.activation_rows import data as numbered_rows
from tests.support.activations import SIZE, TOLD, lora, model, oracle, rows, stirred, texts, tokenizer
from tests.support.attached import THIRD_PARTY, equal, weights
from tests.unit.learner.test_generation_ahead import Judges
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_learner.hf.attach import attach
from oven_learner.losses.sft import Supervised
from oven_learner.rewards import Committee
from oven_learner.testing import FakeLink
from oven_recipes.activations.activation_store import ActivationStore
from oven_recipes.activations.model_blocks import model_body
from oven_recipes.activations.placeholders import oracle_prompt

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def adapted(scale: float = 0.2) -> Any:
    from peft import get_peft_model

    return stirred(get_peft_model(model(), lora()), scale)


def batch(job: Any) -> dict[str, Any]:
    """Eight completions, four of each of two rows, as TRL hands them to the loss."""
    job.model.train()
    job.current_gradient_accumulation_steps = 1  # as `train()` sets it
    torch.manual_seed(5)
    made: dict[str, Any] = job._generate_and_score_completions([job.train_dataset[n // 4] for n in range(8)])
    return made


def gradient(job: Any, inputs: dict[str, Any]) -> torch.Tensor:
    job.model.zero_grad()
    job._compute_loss(job.model, inputs).backward()
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone() for p in trained])


def test_random_rows_have_their_own_vectors_in_every_pass_and_all_passes_agree(
    tmp_path: Path,
) -> None:
    counted = until(tmp_path, rows=40, seed=2)
    assert counted["wrong"] == 0 and counted["in_passes"] > 150
    assert counted["apart"] <= 1e-5


def test_without_vectors_it_is_trl_bit_for_bit(tmp_path: Path) -> None:
    """20 steps, with an adapter and a reference, several chunks and two passes over each generation."""
    settings: dict[str, Any] = {
        "max_steps": 20, "beta": 0.1, "steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4,
    }  # fmt: skip
    data = [{"prompt": f"is it {n} ?"} for n in range(12)]
    plain = oracle(tmp_path, adapted(), data, cls=GRPOTrainer, **settings)
    plain.train()
    ours = oracle(tmp_path, adapted(), data, **settings)
    ours.train()
    assert equal(weights(plain.model), weights(ours.model))
    assert not equal(weights(plain.model), weights(adapted()))


def test_the_oracle_never_sees_a_word_of_the_text(tmp_path: Path) -> None:
    job = oracle(tmp_path, adapted(), beta=0.1, num_iterations=2)
    seen: list[torch.Tensor] = []
    model_body(job.model).register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    words = tokenizer()
    forbidden_ids = {words.convert_tokens_to_ids(word) for word in TOLD}
    prompts = {tuple(words(row["prompt"])["input_ids"]) for row in job.train_dataset}
    assert any(word in text for text in texts(12) for word in TOLD)
    job.train()
    checked = 0
    for ids in seen:
        for row in ids.tolist():
            if len(row) > 1:  # not a step with a cache
                stripped = row[next(index for index, token in enumerate(row) if token) :]
                prompt = next(ids for ids in prompts if tuple(stripped[: len(ids)]) == ids)
                assert not forbidden_ids & set(prompt)
                checked += 1
    assert checked > 50
    assert set(job.train_dataset.column_names) == {"prompt", "activation"}


def kl_alone(job: Any, inputs: dict[str, Any], beta: float) -> torch.Tensor:
    """The gradient of the loss whose policy term is nothing."""
    job.beta = beta
    return gradient(job, inputs | {"advantages": torch.zeros(8)})


def test_the_kl_term_has_a_gradient_towards_the_adapter_that_it_began_with(tmp_path: Path) -> None:
    job = oracle(tmp_path, adapted(), beta=0.1)
    assert set(job.model.peft_config) == {"default", "ref"} and job.ref_model is None
    assert not any(parameter.requires_grad for name, parameter in job.model.named_parameters() if ".ref." in name)
    inputs = batch(job)
    assert torch.equal(kl_alone(job, inputs, 0.1), torch.zeros(1).expand(len(gradient(job, inputs))))  # where it began
    generator = torch.Generator().manual_seed(6)
    start = [parameter.detach().clone() for parameter in job.model.parameters() if parameter.requires_grad]
    for parameter in job.model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    on, off = kl_alone(job, inputs, 0.1), kl_alone(job, inputs, 0.0)
    assert on.norm() > 1e-3 and not off.any()
    job.beta = 0.1
    near: Any = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    moved = torch.cat([(parameter.detach() - origin).flatten() for parameter, origin in zip(near, start, strict=True)])
    assert float(on @ moved) > 0  # downhill is back


def test_the_reference_has_the_vectors_too(tmp_path: Path) -> None:
    """With other vectors its log-probabilities are others, of a policy with an adapter and of one without."""
    for policy in (adapted(), None):
        folder = tmp_path / ("adapter" if policy else "whole")
        if policy is None:
            model().save_pretrained(folder / "policy")
            policy = type(model()).from_pretrained(folder / "policy")
        job = oracle(folder, policy, beta=0.1, learning_rate=0.0)
        assert (job.ref_model is None) == (folder.name == "adapter")
        inputs = batch(job)
        inputs["advantages"] = torch.zeros(8)
        with torch.no_grad():
            assert float(job._compute_loss(job.model, inputs)) == pytest.approx(0, abs=1e-6)  # of a policy from itself
            job.store.get = lambda key, stored=job.store.get: stored(key).flip(-1)
            assert float(job._compute_loss(job.model, inputs)) > 1e-4


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_blocks_have_the_same_gradient(tmp_path: Path, reentrant: bool) -> None:
    plain = oracle(tmp_path, adapted(), beta=0.1)
    inputs = batch(plain) | {"advantages": torch.arange(8) - 3.5}
    again = oracle(
        tmp_path, adapted(), list(plain.train_dataset), beta=0.1, gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": reentrant},
    )  # fmt: skip
    again.current_gradient_accumulation_steps = 1
    again.model.train()
    again.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    wanted = gradient(plain, inputs)
    assert wanted.norm() > 1e-3 and torch.allclose(gradient(again, inputs), wanted, atol=1e-6)


def test_generation_ahead_has_its_own_rows_beside_the_training(tmp_path: Path) -> None:
    """Judges are asked in a thread, while the step before is trained: at rate 0 all passes agree still."""
    judges = Judges()
    committee = Committee({}, remote=judges, ahead=1)
    policy, store = model(), ActivationStore(tmp_path / "activations")
    numbered = numbered_rows(store, random.Random(3), 12)
    watch = Watch(policy, numbered, store)
    job = oracle(tmp_path, policy, numbered, cls=Watched, store=store, reward=committee, learning_rate=0.0, max_steps=4)
    job.watch, judges.trainer = watch, job
    attach(job, committee=committee, link=FakeLink())
    job.train()
    assert {step for step, _ in judges.requests} == {0, 1, 2}  # step 3's were asked for at 2
    assert watch.rows == 32 and watch.wrong == 0 and watch.apart <= 1e-5


def test_each_thread_has_rows_of_its_own(tmp_path: Path) -> None:
    job = oracle(tmp_path)
    ids = tokenizer()([oracle_prompt(1, 2, "so")], return_tensors="pt")["input_ids"]
    errors: list[Any] = []

    def forward_elsewhere() -> None:
        with pytest.raises(RuntimeError, match="no vectors were set for it") as error:
            job.model(ids)
        errors.append(error)

    with job.injection.vectors([torch.ones(2, SIZE)]):
        thread = threading.Thread(target=forward_elsewhere)
        thread.start()
        thread.join()
        assert errors and job.model(ids).logits is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_vllm": True}, "vLLM does not run it; set use_vllm=False"),
        ({"use_transformers_continuous_batching": True}, "set use_transformers_continuous_batching=False"),
        ({"torch_compile": True}, "set torch_compile=False"),
        ({"cache_implementation": "static"}, "omit cache_implementation"),
        ({"channels": [Supervised()]}, "without channels"),
        ({"tools": [print]}, "without tools"),
    ],
)
def test_what_runs_no_hook_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        oracle(tmp_path, model(), [{"prompt": "so", "activation": None}], **settings)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"activation": None}, RuntimeError, "no vectors were set for it"),
        ({"activation": "0.1"}, ConfigError, "capture it with"),
        ({"prompt": oracle_prompt(1, 9, "so")}, RuntimeError, r"has 9 placeholders.* 1 vectors"),
        ({"prompt": oracle_prompt(3, 1, "so")}, RuntimeError, "says `Layer: 3`, but its vectors are from layer 1"),
        ({"prompt": "is it ? ?"}, RuntimeError, "has 0 placeholders"),
    ],
)
def test_a_row_without_its_vectors_ends_training(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    store = ActivationStore(tmp_path / "activations")
    data: Any = rows(store, model(), 2)
    job = oracle(tmp_path, model(), [data[0] | changed, data[0] | changed], store=store)
    with pytest.raises(error, match=message):
        job.train()
