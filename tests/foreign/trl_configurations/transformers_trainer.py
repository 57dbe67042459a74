"""transformers' own Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)

from oven_bench.configurations.configuration import repeated, resumed

from .tiny import COMMON, EVALUATED, gpt2, llama, lora, mixtral, named, qwen3, rows

SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Rows without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(rows())


class StopsEarly(TrainerCallback):
    """Ends training after two steps, and draws from the global generator as users' callbacks do."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        torch.rand(1)
        control.should_training_stop = state.global_step >= 2


class Regularized(Trainer):
    """With a loss of its own."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = outputs.loss + 0.01 * outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


def frozen() -> Any:
    model = llama()
    for parameter in model.model.embed_tokens.parameters():
        parameter.requires_grad = False
    return model


def adapted() -> Any:
    from peft import get_peft_model

    return get_peft_model(llama(), lora(lora_dropout=0.1))


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def own_optimizers(model: Any) -> tuple[Any, Any]:
    """SGD with momentum in two groups, and a schedule of torch's own."""
    halves = list(model.parameters())
    middle = len(halves) // 2
    groups = [{"params": halves[:middle], "lr": 0.02}, {"params": halves[middle:], "weight_decay": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def make(
    folder: Path,
    *,
    model: Any = llama,
    cls: type[Trainer] = Trainer,
    data: Any = rows,
    held_out: Any = None,
    own: bool = False,
    callbacks: Any = lambda: [],
    compute_metrics: Any = None,
    dtype: torch.dtype | None = None,
    **settings: Any,
) -> Trainer:
    built = model()
    if dtype is not None:
        built.to(dtype)
    defaults = {"per_device_train_batch_size": 4}
    return cls(
        model=built,
        args=TrainingArguments(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=data(),
        eval_dataset=held_out() if held_out else rows(8),
        data_collator=default_data_collator,
        callbacks=callbacks(),
        compute_metrics=compute_metrics,
        optimizers=own_optimizers(built) if own else (None, None),
    )


case = named("trainer", make)
TRAINER = (
    case("plain"),
    case("dropout", model=gpt2),
    case("tied_embeddings", model=qwen3),
    case("router_loss", model=mixtral),
    case("frozen_embeddings", model=frozen),
    case("lora", model=adapted),
    case("own_loss", cls=Regularized),
    case("accumulation", gradient_accumulation_steps=2),
    case("accumulation_across_an_epoch", gradient_accumulation_steps=4, per_device_train_batch_size=5),
    case("epochs", max_steps=-1, num_train_epochs=2, per_device_train_batch_size=12),
    case("fraction_of_an_epoch", max_steps=-1, num_train_epochs=0.5),
    case("stream", data=Stream),
    case("loader_worker", dataloader_num_workers=1),
    case("gradient_checkpointing", gradient_checkpointing=True, model=gpt2),
    case("bf16_autocast", bf16=True),
    case("bf16_weights", dtype=torch.bfloat16),
    case("float64_weights", dtype=torch.float64),
    case("no_clipping", max_grad_norm=0.0),
    case("tight_clipping", max_grad_norm=1e-3),
    case("weight_decay", weight_decay=0.1),
    case("label_smoothing", label_smoothing_factor=0.1),
    case("neftune", neftune_noise_alpha=5.0),
    case("schedule_cosine", lr_scheduler_type="cosine", warmup_steps=1),
    case("schedule_constant", lr_scheduler_type="constant"),
    case("schedule_constant_with_warmup", lr_scheduler_type="constant_with_warmup", warmup_steps=2),
    case("schedule_polynomial", lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 2.0}),
    case("schedule_inverse_sqrt", lr_scheduler_type="inverse_sqrt"),
    case("schedule_restarts", lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 2}),
    case(
        "schedule_warmup_stable_decay",
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": 1},
        warmup_steps=1,
    ),
    case("schedule_reduce_on_plateau", lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=1),
    case("optimizer_sgd", optim="sgd"),
    case("optimizer_adafactor", optim="adafactor"),
    case("optimizer_adagrad", optim="adagrad"),
    case("optimizer_rmsprop", optim="rmsprop"),
    case("optimizer_fused_adamw", optim="adamw_torch_fused"),
    case("optimizer_8_bits", optim="adamw_8bit"),
    case("optimizer_own", own=True),
    case("betas", adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6),
    case("evaluation", **EVALUATED),
    case("evaluation_first", **EVALUATED, eval_on_start=True),
    case("evaluation_epochs", max_steps=-1, num_train_epochs=2, per_device_train_batch_size=12, eval_strategy="epoch"),
    case("evaluation_metrics", **EVALUATED, compute_metrics=accuracy),
    case("evaluation_sets", **EVALUATED, held_out=lambda: {"near": rows(4), "far": rows(8)}),
    case("early_stopping", data=rows, callbacks=lambda: [EarlyStoppingCallback(1)], learning_rate=1.0, max_steps=6,
        eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True,
        metric_for_best_model="eval_loss"),
    case("best_at_the_end", **EVALUATED, **SAVED, load_best_model_at_end=True),
    case("save_best", **EVALUATED, max_steps=4, save_strategy="best", metric_for_best_model="eval_loss"),
    case("save_limit", save_strategy="steps", save_steps=1, save_total_limit=1),
    case("callback_that_stops", callbacks=lambda: [StopsEarly()]),
    case("sparse_logging", logging_steps=2, logging_first_step=True),
    case("input_tokens", include_num_input_tokens_seen="all"),
    case("sequential", train_sampling_strategy="sequential"),
    case("drop_last", dataloader_drop_last=True, per_device_train_batch_size=7),
    case("resume", resumed, **SAVED),
    case("resume_dropout", resumed, **SAVED, model=gpt2),
    case("resume_accumulation", resumed, **SAVED, gradient_accumulation_steps=2),
    case("train_twice", repeated),
    case("forty_steps_far_too_fast", max_steps=40, learning_rate=3.0, lr_scheduler_type="constant"),
)  # fmt: skip
