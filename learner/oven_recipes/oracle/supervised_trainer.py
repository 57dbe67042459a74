"""The supervised stage as a run: transformers' Trainer on what the oracle is taught to say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from oven_recipes.activations.injection import ActivationInjection
from oven_recipes.activations.store import ActivationStore
from oven_recipes.oracle.settings import Confidence, OracleSettings
from oven_recipes.oracle.supervised import Lesson, collate
from oven_recipes.runner import TRAINER_ARGUMENTS

VECTORS, LAYERS = "oven_vectors", "oven_layers"
"""In the batch: each row's activations and the block that they come of."""


class LessonData(Dataset[Lesson]):
    """`count` lessons drawn from `taught`. An index always returns the same lesson."""

    def __init__(self, taught: Sequence[Lesson], count: int, seed: int) -> None:
        self._drawn = random.Random(f"lessons {seed}").choices(taught, k=count)

    def __len__(self) -> int:
        return len(self._drawn)

    def __getitem__(self, index: int) -> Lesson:
        return self._drawn[index]


class SupervisedTrainer(Trainer):
    """A Trainer whose loss covers what the oracle says, with the activations injected."""

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        data: LessonData,
        store: ActivationStore,
        settings: OracleSettings,
        confidence: Confidence,
        seed: int,
        workdir: Path,
    ) -> None:
        rng = random.Random(f"stated {seed}")

        def batch(lessons: Sequence[Lesson]) -> dict[str, Any]:
            vectors = [store.get(lesson.key) for lesson in lessons]
            ids, mask, labels = collate(lessons, vectors, tokenizer, confidence, rng)
            layers = [lesson.layer for lesson in lessons]
            return {"input_ids": ids, "attention_mask": mask, "labels": labels, VECTORS: vectors, LAYERS: layers}

        super().__init__(
            model=policy,
            args=TrainingArguments(
                output_dir=str(workdir),
                seed=seed,
                learning_rate=settings.sft_lr,
                lr_scheduler_type="linear",
                max_steps=settings.max_steps,
                per_device_train_batch_size=settings.sft_batch,
                max_grad_norm=settings.max_grad_norm,
                remove_unused_columns=False,
                use_cpu=not torch.cuda.is_available(),
                **TRAINER_ARGUMENTS,
            ),
            train_dataset=data,
            data_collator=batch,
            processing_class=tokenizer,
        )
        self.injection = ActivationInjection(policy, tokenizer)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean cross-entropy over what the oracle says, in nats."""
        labels: Tensor = inputs["labels"]
        with self.injection.rows(inputs[VECTORS], inputs[LAYERS]):
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits = outputs.logits[:, :-1].flatten(0, 1).float()  # (B · (T - 1), V)
        loss = cross_entropy(logits, labels[:, 1:].flatten())
        return (loss, outputs) if return_outputs else loss
