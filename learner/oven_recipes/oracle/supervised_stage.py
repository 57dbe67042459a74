"""The supervised stage, which teaches an oracle to read activations and the format of its answers.

For each example, a confidence is drawn first. The higher the confidence, the more often the answer is correct. But high
confidences overstate the accuracy and low ones understate it, so that GRPO has a calibration error to correct."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from oven_core.errors import ConfigError
from oven_recipes.activations.activation_store import ActivationStore, activation_key
from oven_recipes.activations.capture import capture
from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.placeholders import oracle_prompt
from oven_recipes.oracle.benchmark_items import items
from oven_recipes.oracle.questions import KnownAnswer, Question, QuestionedPrompt
from oven_recipes.oracle.settings import CONSTANT_PERCENT, CONSTANT_SHARE, HIGH_PERCENTS, Confidence, OracleSettings
from oven_recipes.oracle.template_words import QUESTIONS
from oven_recipes.preparation import Progress, resumable_steps
from oven_recipes.small_models import optimizer_step, similar_length_batches, target_batch, warmup_decay_schedule
from oven_recipes.training_runner import trainer_arguments
from oven_recipes.weights_cache import key_of, load_weights, store_weights, unfinished_file

CORRECT_SHARES = (0.5, 0.95)
"""Shares of correct answers at confidences of 0 and 100."""
UNINFORMED_CORRECT_SHARE = 0.725
"""Share of correct answers if the confidence is not informative. It is the mean of CORRECT_SHARES."""
SPECIFIC_SHARE = 0.7
"""Share of correct answers that are specific. GRPO can increase it."""
ALL_CORRECT_STEP_SHARE = 0.6
"""Share of the steps, at the start, that teach only correct answers, so that the model reads activations sooner."""
CONFIDENCE_STEP = 5
"""Step between two possible confidences, in percent. It gives round numbers, like those that people state."""
WEIGHT_SETTINGS = ("lora_rank", "sft_steps", "sft_batch", "sft_lr", "most_activations")
"""Settings that the stage's weights depend on, in addition to its data."""
VERSION = 1
"""Version of the stage. Increase it when a code change would change the weights."""
POOLED_BATCHES = 8
"""Number of batches whose lessons are drawn together and sorted by length."""


@dataclass(frozen=True)
class Subject:
    """The model whose activations are captured. With an adapter, it is also the oracle that reads them."""

    model: Any
    tokenizer: Any
    name: str
    """The model's name in the keys of activations."""
    layers: tuple[int, ...]
    store: ActivationStore

    def capture(self, prompts: Sequence[QuestionedPrompt], limit: int) -> None:
        """Capture the prompts' activations that are not in the store. A text's hash decides how many of its last tokens
        are captured, from 1 to `limit`, so that all runs of a model store the same tokens."""
        texts = dict.fromkeys(prompt.prompt for prompt in prompts)
        keys = {text: [activation_key(self.name, text, layer) for layer in self.layers] for text in texts}
        if missing_texts := [text for text in texts if any(key not in self.store for key in keys[text])]:
            counts = [random.Random(f"tokens {text}").randint(1, limit) for text in missing_texts]
            progress = Progress("capturing activations", len(missing_texts), "text")
            activations = capture(self.model, self.tokenizer, missing_texts, self.layers, counts, progress.report)
            self.store.add(self.name, activations)


def run_supervised_stage(
    policy: Any,
    subject: Subject,
    prompts: Sequence[QuestionedPrompt],
    settings: OracleSettings,
    confidence: Confidence,
    seed: int,
    cache: Path,
) -> None:
    """Train the adapter `default` of `policy`, a PeftModel on the subject, or load it from the cache. The prompts'
    activations must be in the subject's store. Torch's global generator is restored. Raises ConfigError if no question
    has a known answer."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    lessons = build_lessons(prompts, subject.name, subject.layers)
    if not lessons and settings.sft_steps:
        raise ConfigError(
            "the supervised stage requires questions with known answers: omit --questions, or start with a trained "
            "oracle (--oracle-lora-path)"
        )
    inputs = {
        "version": VERSION, "seed": seed, "model": subject.name, "layers": subject.layers, "confidence": confidence,
        "lessons": key_of({"lessons": lessons}),
        **{field: getattr(settings, field) for field in WEIGHT_SETTINGS},
    }  # fmt: skip
    folder = cache / f"oracle-supervised-{key_of(inputs)}"
    if (weights := load_weights(folder)) is not None:
        set_peft_model_state_dict(policy, weights)
        policy.eval()
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train(policy, subject, lessons, settings, confidence, seed, unfinished_file(folder))
    store_weights(get_peft_model_state_dict(policy), folder)


class Lesson(NamedTuple):
    """A question about a text's activations at one layer, and its known answer. `key` is the activations' key."""

    key: str
    layer: int
    question: str
    answer: KnownAnswer


def benchmark_prompts(count: int, rng: random.Random) -> list[QuestionedPrompt]:
    """Return `count` texts from the benchmarks' training parts with all their questions. All benchmarks appear equally
    often."""
    prompts = []
    for number, benchmark in enumerate(QUESTIONS):
        candidates = [
            QuestionedPrompt(text, tuple(Question(item.question, _yes_or_no(item.answer)) for item in text_items))
            for text, text_items in groupby(items(benchmark, held_out=False), key=lambda item: item.text)
        ]
        share = (count + number) // len(QUESTIONS)
        prompts += rng.sample(candidates, min(share, len(candidates)))
    return prompts


def _yes_or_no(answer: str) -> KnownAnswer:
    return KnownAnswer((answer,), (), ("no" if answer == "yes" else "yes",))


def build_lessons(prompts: Sequence[QuestionedPrompt], name: str, layers: Sequence[int]) -> list[Lesson]:
    """Return each question with a known answer, once per layer. `name` is the model's name in the store's keys."""
    return [
        Lesson(activation_key(name, prompt.prompt, layer), layer, question.text, question.answer)
        for prompt in prompts
        for question in prompt.questions
        if question.answer is not None
        for layer in layers
    ]


def teaching_output(
    answer: KnownAnswer, confidence: Confidence, rng: random.Random, *, always_correct: bool = False
) -> str:
    """Return an output to teach. Its stated confidence, and whether its answer is correct, are drawn according to
    `confidence`. With `always_correct`, the answer is correct and specific."""
    percent, correct_probability = _draw_confidence(confidence, rng)
    if always_correct:
        return f"[epistemic status: {percent}] {rng.choice(answer.specific)}"
    choices = answer.specific
    if rng.random() >= correct_probability and answer.wrong:
        choices = answer.wrong
    elif answer.vague and rng.random() >= SPECIFIC_SHARE:
        choices = answer.vague
    return f"[epistemic status: {percent}] {rng.choice(choices)}"


def _draw_confidence(confidence: Confidence, rng: random.Random) -> tuple[int, float]:
    """Draw a confidence in percent, and return it with the probability that its answer is correct."""
    percent = rng.randrange(0, 101, CONFIDENCE_STEP)
    if confidence == "overconfident":
        return rng.randrange(HIGH_PERCENTS[0], HIGH_PERCENTS[1] + 1, CONFIDENCE_STEP), UNINFORMED_CORRECT_SHARE
    if confidence == "constant":
        return (CONSTANT_PERCENT if rng.random() < CONSTANT_SHARE else percent), UNINFORMED_CORRECT_SHARE
    low, high = CORRECT_SHARES
    return percent, low + (high - low) * percent / 100


def train(
    policy: Any,
    subject: Subject,
    lessons: Sequence[Lesson],
    settings: OracleSettings,
    confidence: Confidence,
    seed: int,
    unfinished: Path,
) -> None:
    """Train the weights of `policy` that require gradients on random lessons. Progress is saved to `unfinished`."""
    rng = random.Random(f"supervised {seed}")
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=settings.sft_lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = warmup_decay_schedule(optimizer, settings.sft_steps)
    injection, store = ActivationInjection(policy, subject.tokenizer), subject.store
    policy.train()
    try:
        batches = similar_length_batches(
            lambda: rng.choices(lessons, k=settings.sft_batch * POOLED_BATCHES),
            settings.sft_batch,
            lambda lesson: len(store.get(lesson.key)),
            rng,
        )

        def add_tensors(step: int, batch: Sequence[Lesson]) -> tuple[Sequence[Lesson], list[Tensor], Any]:
            vectors = [store.get(lesson.key) for lesson in batch]
            counts = [len(lesson_vectors) for lesson_vectors in vectors]
            all_correct = step < ALL_CORRECT_STEP_SHARE * settings.sft_steps
            tensors = collate(batch, counts, subject.tokenizer, confidence, rng, always_correct=all_correct)
            return batch, vectors, tensors

        collated_batches = itertools.starmap(add_tensors, enumerate(batches))
        trained = (torch.nn.ParameterList(weights), optimizer, schedule)
        steps = resumable_steps("supervised stage", collated_batches, settings.sft_steps, trained, unfinished)
        for _, (batch, vectors, batch_tensors) in steps:
            loss = lesson_loss(policy, injection, batch, vectors, batch_tensors)
            optimizer_step(loss, weights, optimizer, schedule)
    finally:
        injection.remove()
        policy.eval()


def lesson_loss(
    model: Any,
    injection: ActivationInjection,
    batch: Sequence[Lesson],
    vectors: Sequence[Tensor],
    batch_tensors: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Return the mean cross-entropy of the outputs to teach, in nats. `batch_tensors` is the result of `collate`."""
    ids, mask, labels = (tensor.to(model.device) for tensor in batch_tensors)
    with injection.vectors(vectors, [lesson.layer for lesson in batch]):
        return _cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (batch, tokens, vocabulary) in nats, over all labels except -100."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


def collate(
    batch: Sequence[Lesson],
    counts: Sequence[int],
    tokenizer: Any,
    confidence: Confidence,
    rng: random.Random,
    *,
    always_correct: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and labels, each (batch, tokens), padded on the right. `counts` has the number
    of activations per lesson. Only the tokens of the oracle's output have labels."""
    prompt_texts = [
        oracle_prompt(lesson.layer, count, lesson.question, tokenizer)
        for lesson, count in zip(batch, counts, strict=True)
    ]
    prompts = tokenizer(prompt_texts)["input_ids"]
    responses = [teaching_output(lesson.answer, confidence, rng, always_correct=always_correct) for lesson in batch]
    targets = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(responses, add_special_tokens=False)["input_ids"]]
    return target_batch(prompts, targets, tokenizer.pad_token_id or 0, "right")


VECTORS, LAYERS = "oven_vectors", "oven_layers"
"""Keys of the rows' activations and layers in a batch of SupervisedTrainer."""


class SupervisedTrainer(Trainer):
    """A Trainer that runs only the supervised stage. It injects activations in each forward pass."""

    def __init__(
        self,
        policy: Any,
        subject: Subject,
        prompts: Sequence[QuestionedPrompt],
        settings: OracleSettings,
        confidence: Confidence,
        seed: int,
        workdir: Path,
    ) -> None:
        rng = random.Random(f"stated {seed}")
        count = settings.max_steps * settings.sft_batch
        all_lessons = build_lessons(prompts, subject.name, subject.layers)
        dataset: Any = random.Random(f"lessons {seed}").choices(all_lessons, k=count)

        def collate_batch(batch: Sequence[Lesson]) -> dict[str, Any]:
            vectors = [subject.store.get(lesson.key) for lesson in batch]
            ids, mask, labels = collate(batch, list(map(len, vectors)), subject.tokenizer, confidence, rng)
            layers = [lesson.layer for lesson in batch]
            return {"input_ids": ids, "attention_mask": mask, "labels": labels, VECTORS: vectors, LAYERS: layers}

        super().__init__(
            model=policy,
            args=TrainingArguments(
                lr_scheduler_type="linear",
                per_device_train_batch_size=settings.sft_batch,
                remove_unused_columns=False,
                use_cpu=not torch.cuda.is_available(),
                **trainer_arguments(settings, settings.sft_lr, seed, workdir),
            ),
            train_dataset=dataset,
            data_collator=collate_batch,
            processing_class=subject.tokenizer,
        )
        self.injection = ActivationInjection(policy, subject.tokenizer)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean cross-entropy over the oracle's output, in nats."""
        with self.injection.vectors(inputs[VECTORS], inputs[LAYERS]):
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        loss = _cross_entropy(outputs.logits, inputs["labels"])
        return (loss, outputs) if return_outputs else loss
