"""The model made on the spot and its supervised stage, at sizes that take a second."""

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")

import torch

from oven_recipes.activations.activation_store import ActivationStore
from oven_recipes.oracle.benchmark_items import items
from oven_recipes.oracle.settings import Confidence, OracleSettings
from oven_recipes.oracle.small_model import Schedule, Sizes, build_tokenizer, load_small_model
from oven_recipes.oracle.supervised_stage import (
    Subject,
    benchmark_prompts,
    build_lessons,
    collate,
    run_supervised_stage,
)
from oven_recipes.oracle.template_questions import template_dataset
from oven_recipes.oracle.template_words import QUESTIONS
from oven_recipes.oracle.user_model import fresh_adapter
from oven_recipes.weights_cache import WEIGHTS_FILE

SIZES, SCHEDULE, LAYERS = Sizes(hidden=16, ffn=16, layers=3, heads=2), Schedule(2, 2, 0.02), (1, 2)
SETTINGS = OracleSettings(sft_steps=2, sft_batch=4, lora_rank=2)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21 asks for it
def test_the_model_and_its_oracle_are_trained_once_and_kept(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    before = torch.random.get_rng_state()
    model, name = load_small_model(tokenizer, 1, tmp_path, SIZES, SCHEDULE)
    again, same = load_small_model(tokenizer, 1, tmp_path, SIZES, SCHEDULE)
    other_seed, another = load_small_model(tokenizer, 2, tmp_path, SIZES, SCHEDULE)
    assert name == same != another
    assert torch.equal(weights(model), weights(again)) and not torch.equal(weights(model), weights(other_seed))

    prompts = [*template_dataset(1, 4), *benchmark_prompts(9, random.Random(1))]
    subject = Subject(model, tokenizer, name, LAYERS, ActivationStore(tmp_path / "activations"))
    subject.capture(prompts, 20)
    base = weights(model).clone()

    def taught(confidence: Confidence) -> torch.Tensor:
        own, _ = load_small_model(tokenizer, 1, tmp_path, SIZES, SCHEDULE)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            policy = fresh_adapter(own, SETTINGS.lora_rank)
        run_supervised_stage(policy, subject, prompts, SETTINGS, confidence, 1, tmp_path)
        parts = {lora: [w for n, w in policy.named_parameters() if ("lora" in n) is lora] for lora in (True, False)}
        assert torch.equal(torch.cat([w.detach().flatten() for w in parts[False]]), base)
        return torch.cat([w.detach().flatten() for w in parts[True]])

    first = taught("spread")
    entries = {entry: (entry / WEIGHTS_FILE).stat().st_mtime_ns for entry in tmp_path.glob("oracle-*")}
    assert torch.equal(first, taught("spread"))
    assert entries == {entry: (entry / WEIGHTS_FILE).stat().st_mtime_ns for entry in tmp_path.glob("oracle-*")}
    assert not torch.equal(first, taught("constant"))
    assert torch.equal(before, torch.random.get_rng_state())


def test_only_what_the_oracle_says_is_scored_and_no_word_of_the_prompt_is_in() -> None:
    tokenizer: Any = build_tokenizer()
    prompt = template_dataset(1, 1)[0]
    taught = build_lessons([prompt], "own", (2,))
    vectors = [torch.ones(n % 5 + 1, 8) for n in range(len(taught))]
    ids, mask, labels = collate(taught, list(map(len, vectors)), tokenizer, "spread", random.Random(1))
    placeholder: Any = tokenizer.convert_tokens_to_ids(" ?")
    for row, lesson in enumerate(taught):
        scored = labels[row] >= 0
        assert torch.equal(ids[row][scored], labels[row][scored]) and int(mask[row][scored].min()) == 1
        assert tokenizer.decode(labels[row][scored]).startswith("[epistemic status:")
        assert int(labels[row][scored][-1]) == tokenizer.eos_token_id
        assert ids[row].tolist().count(placeholder) == len(vectors[row])
        shown = tokenizer.decode(ids[row][(mask[row] == 1) & ~scored])
        assert shown.strip().endswith(lesson.question) and prompt.prompt not in shown


def test_benchmarks_teach_nothing_that_is_held_out() -> None:
    apart = {item.text for benchmark in QUESTIONS for item in items(benchmark, held_out=True)}
    made = benchmark_prompts(180, random.Random(1))
    assert len(made) == 180 and not apart & {prompt.prompt for prompt in made}
