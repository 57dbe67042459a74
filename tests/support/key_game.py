"""A policy that calls a tool, and the environment that it calls: GRPO with `environment_factory`, in seconds."""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.unit.learner.test_attach_trl import COMMON
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl.chat_template_utils import qwen3_template
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

KEYS = "abcd"
TEMPLATE = """{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
ROWS = [{"prompt": [{"role": "user", "content": "Press "}], "wanted": key} for key in KEYS]


class Keys:
    """An environment that wants one of four keys, and reports whether it was pressed and which was wanted."""

    def __init__(self) -> None:
        self.wanted, self.pressed = "", ""

    def reset(self, wanted: str = "a", **_: Any) -> str:
        self.wanted, self.pressed = wanted, ""
        return wanted

    def press(self, key: str) -> str:
        """Press a key.

        Args:
            key: The key.
        """
        self.pressed = key
        return "ok" if key == self.wanted else "no"

    def get_reward(self) -> float:
        return float(self.pressed == self.wanted)

    @property
    def feedback(self) -> str | None:
        return None if self.pressed == self.wanted else f"it was {self.wanted}"


def call(key: str) -> str:
    return f'<tool_call>\n{{"name": "press", "arguments": {{"key": "{key}"}}}}\n</tool_call>'


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per character and one per whole call, so that a tiny model soon makes calls."""
    letters = [*string.printable[:96], *"\n"]
    words = {word: n for n, word in enumerate(dict.fromkeys(["<pad>", "<|im_start|>", "<|im_end|>", *letters]))}
    made = Tokenizer(WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer, made.decoder = Split("", "isolated"), Fuse()
    made.add_special_tokens(["<|im_start|>"])
    made.add_tokens([AddedToken(call(key), normalized=False) for key in KEYS])
    fast_tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )
    fast_tokenizer.response_template = qwen3_template
    return fast_tokenizer


@cache
def _warmed_up() -> dict[str, Any]:
    """Return the weights of a policy that presses any key and then ends."""
    set_seed(3)
    words, model = tokenizer(), _bare()
    texts = []
    for wanted in KEYS:
        for pressed in KEYS:
            rows = [
                {"role": "user", "content": f"Press {wanted}"},
                {"role": "assistant", "content": call(pressed)},
                {"role": "tool", "content": "ok" if wanted == pressed else "no"},
                {"role": "assistant", "content": "." * KEYS.index(pressed)},
            ]
            texts.append(f"press {words.apply_chat_template(rows, tokenize=False)}")
    batch = words(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model(**{k: batch[k] for k in ("input_ids", "attention_mask")}, labels=labels).loss.backward()
        optimizer.step()
    state: dict[str, Any] = model.state_dict()
    return state


def _bare() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=112, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def policy() -> Any:
    made = _bare()
    made.load_state_dict(_warmed_up())
    return made


def game(folder: Path, cls: type[GRPOTrainer] = GRPOTrainer, **settings: Any) -> Any:
    """Return a trainer on the game."""
    model = settings.pop("model", None) or policy()
    set_seed(3)
    extra = {key: settings.pop(key) for key in ("channels", "peft_config") if key in settings}
    defaults = {
        "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 40, "max_steps": 3,
        "max_tool_calling_iterations": 1, "learning_rate": 1e-3,
    }  # fmt: skip
    return cls(
        model=model,
        reward_funcs=[],
        args=GRPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=Dataset.from_list(ROWS * 2),
        processing_class=tokenizer(),
        environment_factory=Keys,
        **extra,
    )
