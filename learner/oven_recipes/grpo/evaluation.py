"""Measures the accuracy of greedy decoding on held-out prompts, without an effect on the training run."""

import random
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from oven_recipes.grpo.settings import SortingSettings
from oven_recipes.grpo.sorting_task import Example, draw_pool


def held_out_examples(settings: SortingSettings) -> list[Example]:
    """Return the held-out examples. All seeds have the same, so that accuracies of different runs are comparable."""
    rng = random.Random("held out")
    pools = (draw_pool(length, settings.eval_prompts, rng, evaluation=True) for length in sorted(settings.lengths))
    return [example for examples in pools for example in examples]


def greedy_accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example], max_new_tokens: int
) -> dict[str, float | list[float]]:
    """Return the accuracy of each level, `eval/accuracy/<level>`. Also return `eval/accuracy` as one value per example,
    so that the mean of these values is the mean over all levels. Torch's global generator and the model's mode are
    restored."""
    prompts = [example.prompt for example in examples]
    batch = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)  # (examples, prompt)
    was_training = model.training
    model.train(False)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output = model.generate(  # type: ignore[misc]
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )  # (examples, prompt + completion)
    finally:
        model.train(was_training)
    answers = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    hits = [float(answer == example.answer) for answer, example in zip(answers, examples, strict=True)]
    hits_by_level: defaultdict[str, list[float]] = defaultdict(list)
    for hit, example in zip(hits, examples, strict=True):
        hits_by_level[example.level].append(hit)
    # The weights make every level count equally in the mean.
    weights = {level: len(hits) / (len(hits_by_level) * len(level_hits)) for level, level_hits in hits_by_level.items()}
    by_level = {f"eval/accuracy/{level}": fmean(level_hits) for level, level_hits in hits_by_level.items()}
    weighted_hits = [hit * weights[example.level] for hit, example in zip(hits, examples, strict=True)]
    return {"eval/accuracy": weighted_hits, **by_level}


def held_out_evaluation(
    trainer: Any, tokenizer: PreTrainedTokenizerFast, settings: SortingSettings
) -> Callable[[], dict[str, float | list[float]]]:
    """Return a function that measures the policy's greedy accuracy on the held-out prompts."""
    examples = held_out_examples(settings)

    def evaluate() -> dict[str, float | list[float]]:
        policy = trainer.accelerator.unwrap_model(trainer.model)
        return greedy_accuracy(policy, tokenizer, examples, settings.max_completion_length)

    return evaluate
