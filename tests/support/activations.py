"""Helpers for the tests of activations: a tokenizer with ` ?` as one token, four model families, an oracle's job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.unit.learner.test_attach_trl import COMMON
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)
from trl.trainer.grpo_config import GRPOConfig

from oven_recipes.activations.activation_store import ActivationStore
from oven_recipes.activations.capture import capture
from oven_recipes.activations.grpo_trainer import ActivationGRPOTrainer
from oven_recipes.activations.placeholders import oracle_prompt

ASKED = ["is", "it", "so", "what", "why", "red", "blue", "yes", "no"]
TOLD = ["cat", "dog", "ran", "sat", "tree", "sea", "sun", "moon"]
"""Words of the texts, which are in no question."""
WORDS = ["<pad>", "<s>", "</s>", " ?", "Layer", ":", " ", "\n", "?", *"0123456789", *ASKED, *TOLD]
DEPTH, SIZE, MODEL = 4, 16, "tiny"


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = Split(Regex(r" \?|\n|[A-Za-z]+|."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def model(family: str = "llama", seed: int = 3, spread: float = 0.3) -> Any:
    """Return a random model with weights large enough for its input to matter."""
    set_seed(seed)
    same: dict[str, Any] = {
        "vocab_size": len(WORDS), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": spread,
    }  # fmt: skip
    modern = same | {
        "hidden_size": SIZE, "intermediate_size": 32, "num_hidden_layers": DEPTH, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 128,
    }  # fmt: skip
    made: Any
    if family == "gpt2":
        dropped: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        made = GPT2LMHeadModel(GPT2Config(n_embd=SIZE, n_layer=DEPTH, n_head=2, n_positions=128, **dropped, **same))
    elif family == "gemma3":
        made = Gemma3ForCausalLM(Gemma3TextConfig(sliding_window=8, query_pre_attn_scalar=8, **modern))
    elif family == "qwen3":
        made = Qwen3ForCausalLM(Qwen3Config(**modern))
    else:
        made = LlamaForCausalLM(LlamaConfig(**modern))
    return made


FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")


def lora(**settings: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM", **settings)


def stirred(policy: Any, scale: float = 0.2) -> Any:
    """Return an adapter with random weights. A new LoRA adapter has zeros and changes nothing."""
    generator = torch.Generator().manual_seed(9)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, scale, generator=generator)
    return policy


def texts(count: int) -> list[str]:
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    return [" ".join(TOLD[int(torch.randint(8, (1,), generator=generator))] for _ in range(n)) for n in lengths]


def rows(store: ActivationStore, base: Any, count: int = 12) -> list[dict[str, str]]:
    """Return questions about texts at two depths: few different prompts, and as many different activations as rows."""
    words = tokenizer()
    made = []
    captured = capture(base, words, texts(count), [1, 2], [1 + n % 3 for n in range(count)])
    for n, (captured_activation, key) in enumerate(zip(captured, store.add(MODEL, captured), strict=True)):
        question = ("is it red ?", "why ? ?", "is it so")[n % 3]
        made.append(
            {
                "prompt": oracle_prompt(captured_activation.layer, len(captured_activation.vectors), question),
                "activation": key,
            }
        )
    return made


def early(completions: list[str], **_: Any) -> list[float | None]:
    return [float(sum(WORDS.index(word) < 20 for word in text.split() if word in WORDS)) for text in completions]


def oracle(
    folder: Path, policy: Any = None, data: Any = None, cls: Any = ActivationGRPOTrainer, **settings: Any
) -> Any:
    """Return a job of a few steps with its store next to it."""
    policy = model() if policy is None else policy
    extra: dict[str, Any] = {key: settings.pop(key) for key in ("eval_dataset", "channels", "tools") if key in settings}
    if issubclass(cls, ActivationGRPOTrainer):
        extra["store"] = settings.pop("store", None) or ActivationStore(folder / "activations")
        if data is None:
            data = rows(extra["store"], policy)
    defaults: dict[str, Any] = {
        "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 5, "max_steps": 3,
        "scale_rewards": "none",
    }  # fmt: skip
    set_seed(3)
    return cls(
        model=policy,
        reward_funcs=[settings.pop("reward", early)],
        args=GRPOConfig(output_dir=str(folder / "out"), **(COMMON | defaults | settings)),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer(),
        **extra,
    )
