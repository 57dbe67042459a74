"""One call from a model to a controlled run: `python examples/text_model.py`.

It starts a stack, which ends with the script. During training the script swaps the teacher with an operator's command
(signed, logged and answered), and registers another one.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the script downloads nothing

from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, set_seed

import oven_learner as oven
from oven_learner.teachers import TeacherConfig

STEPS = int(os.environ.get("STEPS", "120"))


class Bytes(ByT5Tokenizer):
    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: Any = None) -> list[int]:
        return token_ids_0  # no end of sequence after a prompt


def model(width: int = 32) -> LlamaForCausalLM:
    size: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1}
    ids: dict[str, Any] = {"vocab_size": 259, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, max_position_embeddings=64, **size, **ids))


def vowels(completions: list[str], **_: Any) -> list[float | None]:
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


async def main() -> None:
    set_seed(0)
    baked = oven.bake(
        model(), Bytes(extra_ids=0), name="vowels-30k", description="Answers in vowels.", prompts=[*"abcdefgh"],
        rules=vowels, group_size=8, prompts_per_step=2, total_steps=STEPS,
        teachers={"small": model(), "big": model(64)}, beta=0.02,
        learning_rate=3e-3, max_completion_length=8, gradient_checkpointing=False,
        save_strategy="no", disable_tqdm=True, logging_steps=20,
    )  # fmt: skip
    training = asyncio.create_task(baked.run())
    await asyncio.to_thread(baked.began.wait)
    receipt = await asyncio.to_thread(baked.swap_teacher, "big")
    print(f"run {baked.run_name}: teacher {receipt.before} → {receipt.after} at step {receipt.step}" if receipt else "")
    late = TeacherConfig(name="late", kind="big", model=model(64), tokenizer=Bytes(extra_ids=0))
    await asyncio.to_thread(baked.register_teacher, late)
    receipt = await asyncio.to_thread(baked.swap_teacher, "late")
    print(f"registered while training: {receipt.before} → {receipt.after} at step {receipt.step}" if receipt else "")
    await training
    print(baked.summary)


if __name__ == "__main__":
    asyncio.run(main())
