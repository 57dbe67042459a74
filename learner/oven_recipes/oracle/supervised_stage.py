"""The supervised stage, which teaches an oracle the answer format, with confidences over the whole range.

The confidence is drawn first. The higher it is, the more often the answer is correct, but high confidences overstate
accuracy and low ones understate it. So GRPO can improve calibration without having to discover the format."""

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
from oven_recipes.preparation import Progress, continued_steps
from oven_recipes.small_models import optimizer_step, similar_length_batches, target_batch, warmup_decay_schedule
from oven_recipes.training_runner import trainer_arguments
from oven_recipes.weights_cache import key_of, load_weights, store_weights, unfinished_file

CORRECT_SHARES = (0.5, 0.95)
"""Shares of correct answers at confidences of 0 and 100."""
UNINFORMED_CORRECT_SHARE = 0.725
"""Share of correct answers if the confidence is not informative: the mean of CORRECT_SHARES."""
SPECIFIC_SHARE = 0.7
"""Share of correct answers that are specific. GRPO can increase it."""
CLEAN_SHARE = 0.6
"""Share of the steps, at the start, with correct answers only, so that the model learns to read activations sooner."""
CONFIDENCE_STEP = 5
"""Confidences are multiples of this, like those that people state."""
CACHE_SETTINGS = ("lora_rank", "sft_steps", "sft_batch", "sft_lr", "most_activations")
"""Settings that the stage depends on, in addition to its data."""
VERSION = 1
"""Version of the stage. Increase it when a code change alters the resulting weights."""
BATCHES_TO_SORT = 8
"""Number of batches to draw together. Their lessons are sorted by length and then split into batches."""


@dataclass(frozen=True)
class Subject:
    """The model whose activations are read. With an adapter, it is also the model that reads them."""

    model: Any
    tokenizer: Any
    name: str
    """The model's name in the keys of activations."""
    layers: tuple[int, ...]
    store: ActivationStore

    def capture(self, prompts: Sequence[QuestionedPrompt], limit: int) -> None:
        """Add the prompts' missing activations to the store. A text's digest decides how many of its last tokens are
        stored, from 1 to `limit`, so that all runs of a model store the same tokens."""
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
    """Train the adapter `default` of `policy`, a PeftModel on the subject, or load it from a valid cache entry.
    `prompts` have known answers, and their activations are stored. Torch's global generator is restored. Raises
    ConfigError if no answer is known, and the errors of `ActivationInjection`."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    stage_lessons = build_lessons(prompts, subject.name, subject.layers)
    if not stage_lessons and settings.sft_steps:
        raise ConfigError(
            "the supervised stage requires questions with known answers: omit --questions, or start with a trained "
            "oracle (--oracle-lora-path)"
        )
    inputs = {
        "version": VERSION, "seed": seed, "model": subject.name, "layers": subject.layers, "confidence": confidence,
        "lessons": key_of({"lessons": stage_lessons}),
        **{field: getattr(settings, field) for field in CACHE_SETTINGS},
    }  # fmt: skip
    folder = cache / f"oracle-supervised-{key_of(inputs)}"
    if (weights := load_weights(folder)) is not None:
        set_peft_model_state_dict(policy, weights)
        policy.eval()
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train(policy, subject, stage_lessons, settings, confidence, seed, unfinished_file(folder))
    store_weights(get_peft_model_state_dict(policy), folder)


class Lesson(NamedTuple):
    """A question about a text's activations at one layer, and its known answer."""

    key: str
    layer: int
    question: str
    answer: KnownAnswer


def benchmark_prompts(count: int, rng: random.Random) -> list[QuestionedPrompt]:
    """Return `count` texts from the benchmarks' training parts with all their questions. All benchmarks appear equally
    often."""
    prompts = []
    for number, benchmark in enumerate(QUESTIONS):
        texts = [
            (text, tuple(Question(item.question, _yes_or_no(item.answer)) for item in text_items))
            for text, text_items in groupby(items(benchmark, held_out=False), key=lambda item: item.text)
        ]
        share = (count + number) // len(QUESTIONS)
        prompts += [
            QuestionedPrompt(text, text_questions) for text, text_questions in rng.sample(texts, min(share, len(texts)))
        ]
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


def teaching_output(answer: KnownAnswer, confidence: Confidence, rng: random.Random, *, clean: bool = False) -> str:
    """Return an output to teach. `confidence` determines how its stated confidence is drawn, and the probability of a
    correct answer. With `clean`, the answer is always correct and specific."""
    percent, correct_probability = _draw_confidence(confidence, rng)
    if clean:
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
    stage_lessons: Sequence[Lesson],
    settings: OracleSettings,
    confidence: Confidence,
    seed: int,
    unfinished: Path,
) -> None:
    """Train the weights of `policy` that require gradients on random lessons from `stage_lessons`. `unfinished` is the
    file for its progress."""
    rng = random.Random(f"supervised {seed}")
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=settings.sft_lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = warmup_decay_schedule(optimizer, settings.sft_steps)
    injection, store = ActivationInjection(policy, subject.tokenizer), subject.store
    policy.train()
    try:
        batches = similar_length_batches(
            lambda: rng.choices(stage_lessons, k=settings.sft_batch * BATCHES_TO_SORT),
            settings.sft_batch,
            lambda lesson: len(store.get(lesson.key)),
            rng,
        )

        def collated(step: int, batch: Sequence[Lesson]) -> tuple[Sequence[Lesson], list[Tensor], Any]:
            vectors = [store.get(lesson.key) for lesson in batch]
            clean = step < CLEAN_SHARE * settings.sft_steps
            return (
                batch,
                vectors,
                collate(batch, list(map(len, vectors)), subject.tokenizer, confidence, rng, clean=clean),
            )

        collated_batches = itertools.starmap(collated, enumerate(batches))
        trained = (torch.nn.ParameterList(weights), optimizer, schedule)
        steps = continued_steps("supervised stage", collated_batches, settings.sft_steps, trained, unfinished)
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
    """Return the mean cross-entropy, in nats, of the oracle's correct answers about `vectors`. `batch_tensors`: the
    result of `collate`."""
    ids, mask, labels = (tensor.to(model.device) for tensor in batch_tensors)
    with injection.vectors(vectors, [lesson.layer for lesson in batch]):
        return _cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of logits (B, T, V), over all labels (B, T) that are not ignored."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


def collate(
    batch: Sequence[Lesson],
    counts: Sequence[int],
    tokenizer: Any,
    confidence: Confidence,
    rng: random.Random,
    *,
    clean: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and labels, each (B, T), padded on the right. `counts` are the numbers of
    activations per lesson. Only the oracle's output is scored."""
    prompt_texts = [
        oracle_prompt(lesson.layer, count, lesson.question, tokenizer)
        for lesson, count in zip(batch, counts, strict=True)
    ]
    prompts = tokenizer(prompt_texts)["input_ids"]
    responses = [teaching_output(lesson.answer, confidence, rng, clean=clean) for lesson in batch]
    targets = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(responses, add_special_tokens=False)["input_ids"]]
    return target_batch(prompts, targets, tokenizer.pad_token_id or 0, "right")


VECTORS, LAYERS = "oven_vectors", "oven_layers"
"""Batch keys of the rows' activations and of their layers."""


class SupervisedTrainer(Trainer):
    """A Trainer that injects activations and computes the loss of the oracle's output."""

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
