"""Models of some 14,000 parameters, a tokenizer of bytes, and data of a few rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Trainer,
)

from oven_bench.configurations.configuration import Configuration, Make, once

SPECIAL = ("<pad>", "<s>", "</s>", "<user>", "<assistant>")
VOCABULARY = 264
"""Special tokens, 256 bytes, and a few rows that no token has."""
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    "<assistant>{% generation %}{{ message.content }}</s>{% endgeneration %}"
    "{% else %}<user>{{ message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
COMMON: dict[str, Any] = {
    "max_steps": 3, "learning_rate": 0.01, "logging_steps": 1, "save_strategy": "no", "report_to": [],
    "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "seed": 3, "bf16": False,
    "gradient_checkpointing": False,
}  # fmt: skip
"""Settings of every configuration, unless it has its own."""
EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}


def tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per byte."""
    words = {word: number for number, word in enumerate([*SPECIAL, *sorted(ByteLevel.alphabet())])}
    made = Tokenizer(BPE(words, []))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=template,
    )


SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def llama(**changed: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**(SHAPE | changed)))


def qwen3() -> Qwen3ForCausalLM:
    """With tied embeddings."""
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True))


def gpt2() -> GPT2LMHeadModel:
    """With dropout, so that every step draws from torch's generator."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=128, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2,
            pad_token_id=0,
        )
    )  # fmt: skip


def mixtral() -> MixtralForCausalLM:
    """Two experts, and a router that has a loss of its own."""
    return MixtralForCausalLM(
        MixtralConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1, output_router_logits=True)
    )


def scorer() -> LlamaForSequenceClassification:
    """A reward model: one number per text."""
    return LlamaForSequenceClassification(LlamaConfig(**(SHAPE | {"num_labels": 1})))  # type: ignore[no-untyped-call]


def saved(folder: Path, model: Any = None) -> str:
    """The model as a local path, for trainers that load it a second time as their reference."""
    path = folder / "policy"
    (model or llama()).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def lora(**changed: Any) -> Any:
    """Fails where PEFT is not installed."""
    from peft import LoraConfig

    settings: dict[str, Any] = {
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    }
    return LoraConfig(**(settings | changed))


WORDS = ("blue sky", "red apple", "two cats", "old stone", "deep sea", "warm bread", "long road", "quiet night")


@cache
def texts() -> Dataset:
    return Dataset.from_list([{"text": f"{word} is {word[::-1]}."} for word in WORDS * 3])


@cache
def completed() -> Dataset:
    """Prompt and completion."""
    return Dataset.from_list([{"prompt": f"{word}: ", "completion": f"{word[::-1]}."} for word in WORDS * 3])


@cache
def chats() -> Dataset:
    return Dataset.from_list([{"messages": [user(f"say {word}"), assistant(word)]} for word in WORDS * 3])


@cache
def prompts() -> Dataset:
    """With a column for reward functions."""
    return Dataset.from_list([{"prompt": f"{word}: ", "answer": word[::-1]} for word in WORDS * 3])


@cache
def chat_prompts() -> Dataset:
    """Conversational prompts."""
    return Dataset.from_list([{"prompt": [user(f"say {word}")], "answer": word} for word in WORDS * 3])


@cache
def preferences() -> Dataset:
    """Prompt, chosen, rejected; of several lengths."""
    return Dataset.from_list(
        [
            {"prompt": f"{word}: ", "chosen": f"{word} yes.", "rejected": "no" + "!" * (number % 4 + 1)}
            for number, word in enumerate(WORDS * 3)
        ]
    )


@cache
def preferred_chats() -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": [user(word)], "chosen": [assistant(f"{word} yes")], "rejected": [assistant("no")]}
            for word in WORDS * 3
        ]
    )


@cache
def labelled() -> Dataset:
    """Unpaired preferences."""
    return Dataset.from_list(
        [
            {"prompt": f"{word}: ", "completion": f"{word} {'yes' if number % 2 else 'no'}", "label": bool(number % 2)}
            for number, word in enumerate(WORDS * 3)
        ]
    )


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def even(completions: list[Any], **_: Any) -> list[float]:
    """Share of characters with an even code point: it differs between random completions."""
    return [sum(ord(letter) % 2 == 0 for letter in text(completion)) / 8 for completion in completions]


def plain(completions: list[Any], **_: Any) -> list[float]:
    """Share of ASCII characters."""
    return [sum(letter.isascii() for letter in text(completion)) / 8 for completion in completions]


def text(completion: Any) -> str:
    """Of a completion, conversational or not."""
    return completion if isinstance(completion, str) else "".join(turn["content"] or "" for turn in completion)


def rows(count: int = 24) -> list[dict[str, torch.Tensor]]:
    """Token rows of one length, for transformers' own trainer."""
    generator = torch.Generator().manual_seed(5)
    made = [torch.randint(5, VOCABULARY, (12,), generator=generator) for _ in range(count)]
    return [{"input_ids": row, "labels": row.clone()} for row in made]


def named(family: str, make: Callable[..., Trainer]) -> Callable[..., Configuration]:
    """A function that makes configurations of a family: each has a name, a way of training, a reason why it may differ,
    and what `make` is given beside its folder."""

    def configuration(option: str, train: Any = once, on_purpose: str = "", **settings: Any) -> Configuration:
        made: Make = lambda folder: make(folder, **settings)  # noqa: E731
        return Configuration(f"{family}/{option}", made, train, on_purpose)

    return configuration
