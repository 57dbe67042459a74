"""TRL's GRPOTrainer, and its experimental GMPO."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch
import trl
from transformers import Trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_bench.configurations.configuration import resumed

from .tiny import (
    COMMON,
    EVALUATED,
    TEMPLATE,
    chat_prompts,
    even,
    gpt2,
    llama,
    lora,
    mixtral,
    named,
    plain,
    prompts,
    saved,
    scorer,
    tokenizer,
)

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "vespo")
SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}

INSIDE = "attach saves the generation buffer with a checkpoint, which TRL makes anew"
LATER = "attach saves the state of the generator that shuffles each epoch, which TRL begins anew"
"""Where attach makes a resumed run equal the straight one, which TRL's own resume is not (test_resume_trl.py)."""


def varied(completions: list[Any], **_: Any) -> list[float]:
    """Share of distinct characters: a policy that collapses loses it."""
    return [len(set(completion)) / 8 for completion in completions]


async def patient(completions: list[Any], **_: Any) -> list[float]:
    """A reward that waits for others, as a judge behind a network does."""
    await asyncio.sleep(0)
    return plain(completions)


def sometimes(completions: list[Any], **_: Any) -> list[float | None]:
    """Has nothing to say of every other completion."""
    return [value if number % 2 else None for number, value in enumerate(plain(completions))]


def never(completions: list[Any], **_: Any) -> list[None]:
    return [None] * len(completions)


def answered(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Reads a column of the data."""
    return [
        sum(ord(letter) % 2 == len(wanted) % 2 for letter in completion) / 8
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def logged(completions: list[Any], log_metric: Any = None, log_extra: Any = None, **_: Any) -> list[float]:
    """Logs a metric of its own."""
    if log_metric is not None:
        log_metric("completions/first", float(len(completions)))
    return even(completions)


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Completions that the user's own code has written."""
    words = trainer.processing_class
    written = [torch.randint(5, 30, (4,)).tolist() for _ in prompts]
    return {
        "prompt_ids": words(prompts)["input_ids"],
        "completion_ids": written,
        "logprobs": [[-1.0] * 4] * len(written),
    }


def twice(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.

    Returns:
        Twice the number.
    """
    return 2 * number


class Counter:
    """An environment with one tool."""

    def reset(self, **_: Any) -> str:
        self.count = 0
        return "count"

    def add(self, number: int) -> int:
        """Adds to the count.

        Args:
            number: What is added.

        Returns:
            The count.
        """
        self.count += number
        return self.count


def qwen3_template() -> str:
    """TRL reads tool calls in the formats of chat templates that it knows."""
    return (Path(trl.__path__[0]) / "chat_templates" / "qwen3.jinja").read_text()


def judge() -> Any:
    """A model as the reward function."""
    model = scorer()
    model.config._name_or_path = "judge"
    return model


def settings_of(folder: Path, cls: Any, settings: dict[str, Any]) -> Any:
    defaults = {"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 8}
    return cls(output_dir=str(folder), **(COMMON | defaults | settings))


def make(
    folder: Path, *, model: Any = llama, rewards: Any = (even,), judges: int = 0, data: Any = prompts,
    stream: bool = False, peft: Any = None, template: Any = None,
    cls: Any = GRPOTrainer, config: Any = GRPOConfig, extra: Any = None,
    **settings: Any,
) -> Trainer:  # fmt: skip
    rows = data().to_iterable_dataset() if stream else data()
    words = {"reward_processing_classes": [None, *(tokenizer() for _ in range(judges))]} if judges else {}
    made: Trainer = cls(
        model=saved(folder, model()),
        reward_funcs=[*rewards, *(judge() for _ in range(judges))],
        args=settings_of(folder, config, settings),
        train_dataset=rows,
        eval_dataset=data().select(range(2)),
        processing_class=tokenizer(template() if template else TEMPLATE),
        peft_config=peft() if peft else None,
        **words,
        **(extra or {}),
    )
    return made


def apart(folder: Path, **settings: Any) -> Trainer:
    """Generation in a server of its own."""
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    made: Trainer = AsyncGRPOTrainer(
        model=saved(folder),
        reward_funcs=[even],
        args=settings_of(folder, AsyncGRPOConfig, settings),
        train_dataset=chat_prompts(),
        processing_class=tokenizer(),
    )
    return made


def geometric(folder: Path, **settings: Any) -> Trainer:
    from trl.experimental.gmpo.gmpo_config import GMPOConfig
    from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer

    return make(folder, cls=GMPOTrainer, config=GMPOConfig, **settings)


TWO = (even, plain)
case, gmpo, asynchronous = named("grpo", make), named("gmpo", geometric), named("async_grpo", apart)
GRPO = (
    *(case(f"loss_{loss}", loss_type=loss) for loss in LOSSES),
    case("loss_luspo", loss_type="luspo", importance_sampling_level="sequence"),
    *(case(f"loss_{loss}_iterations", loss_type=loss, num_iterations=2) for loss in LOSSES),
    case("sequence_importance", loss_type="grpo", importance_sampling_level="sequence", num_iterations=2),
    case("scale_batch", scale_rewards="batch"),
    case("scale_none", scale_rewards="none"),
    case("iterations", num_iterations=3, max_steps=4),
    case("steps_per_generation", steps_per_generation=2, max_steps=4),
    case("generation_batch", generation_batch_size=8, max_steps=4),
    case("accumulation", gradient_accumulation_steps=2),
    case("accumulation_iterations", gradient_accumulation_steps=2, num_iterations=2, max_steps=4),
    case("two_prompts", per_device_train_batch_size=8),
    case("beta", beta=0.1),
    case("beta_iterations", beta=0.1, num_iterations=2),
    case("beta_synced_reference", beta=0.1, sync_ref_model=True, ref_model_sync_steps=2),
    case("beta_bias_correction", beta=0.1, use_bias_correction_kl=True),
    case("clip_higher", epsilon=0.1, epsilon_high=0.3, num_iterations=2),
    case("two_sided_clip", delta=1.5, num_iterations=2),
    case("off_policy_mask", off_policy_mask_threshold=0.5, num_iterations=2),
    case("rewards_two", rewards=TWO),
    case("rewards_weighted", rewards=TWO, reward_weights=[0.7, 0.3]),
    case("rewards_normalized_apart", rewards=TWO, multi_objective_aggregation="normalize_then_sum"),
    case("rewards_async", rewards=(even, patient)),
    case("rewards_some_missing", rewards=(even, sometimes)),
    case("rewards_one_silent", rewards=(even, never)),
    case("rewards_all_missing", rewards=(never,)),
    case("rewards_of_a_column", rewards=(answered,)),
    case("rewards_with_own_metric", rewards=(logged,)),
    case("rewards_of_a_model", judges=1),
    case("masked_truncation", mask_truncated_completions=True),
    case("masked_truncation_all", mask_truncated_completions=True, max_completion_length=1),
    case("top_entropy", top_entropy_quantile=0.2),
    case("entropy_bonus", entropy_coef=0.01),
    case("entropy_adaptive", entropy_coef=0.01, use_adaptive_entropy=True, entropy_target=4.0),
    case("sampling", temperature=0.7, top_p=0.9, top_k=8),
    case("sampling_min_p", min_p=0.05, repetition_penalty=1.1),
    case("sampling_generation_kwargs", generation_kwargs={"no_repeat_ngram_size": 2}),
    case("own_rollout", extra={"rollout_func": rollout}),
    case("tools", data=chat_prompts, template=qwen3_template, extra={"tools": [twice]}),
    case("environment", data=chat_prompts, template=qwen3_template, extra={"environment_factory": Counter}),
    case("liger", use_liger_kernel=True),
    case("vllm", use_vllm=True, vllm_mode="colocate"),
    case("static_cache", cache_implementation="static"),
    case("head_in_float32", cast_lm_head_to_fp32=True),
    case("not_shuffled", shuffle_dataset=False),
    case("pad_to_multiple", pad_to_multiple_of=8),
    case("log_completions", log_completions=True, num_completions_to_print=1),
    case("conversational", data=chat_prompts),
    case("stream", stream=True),
    case("dropout", model=gpt2),
    case("dropout_off", model=gpt2, disable_dropout=True),
    case("router_loss", model=mixtral),
    case("gradient_checkpointing", gradient_checkpointing=True),
    case("bf16_autocast", bf16=True),
    case("no_clipping", max_grad_norm=0.0),
    case("evaluation", **EVALUATED, per_device_eval_batch_size=4),
    case("evaluation_fewer", **EVALUATED, per_device_eval_batch_size=4, num_generations_eval=2),
    case("evaluation_rewards", **EVALUATED, per_device_eval_batch_size=4, rewards=TWO, beta=0.1),
    case("lora", peft=lora),
    case("lora_beta", peft=lora, beta=0.1),
    case("lora_checkpointing", peft=lora, gradient_checkpointing=True),
    case("save", **SAVED),
    case("resume", resumed, **SAVED),
    case(
        "resume_inside_a_generation",
        resumed,
        INSIDE,
        save_strategy="steps",
        save_steps=1,
        max_steps=4,
        num_iterations=2,
    ),
    case(
        "resume_in_a_later_epoch",
        resumed,
        LATER,
        per_device_train_batch_size=24,
        save_strategy="steps",
        save_steps=5,
        max_steps=6,
    ),
    case("epochs", max_steps=-1, num_train_epochs=1, per_device_train_batch_size=24, num_generations=3),
    case("forty_steps_far_too_fast", rewards=(varied,), max_steps=40, learning_rate=0.3, lr_scheduler_type="constant"),
    asynchronous("plain"),
    gmpo("plain"),
    gmpo("iterations", num_iterations=2),
    gmpo("beta", beta=0.1),
)
