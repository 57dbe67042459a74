"""GRPO with TRL on a small Llama that spells: the reward is the share of letters that follow the one before them in the
alphabet, measured on held-out prompts every few steps.
`oven-controller run -- python tests/foreign/grpo_evaluated.py --steps 120`"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made here

import random
import string
import tempfile
import warnings
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from transformers.utils.logging import disable_progress_bar
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import oven_learner as oven
from oven_bench.foreign.case import Case, Result, command_line
from oven_learner.link.link_interface import Link

LETTERS = string.ascii_lowercase
VOCABULARY = ("<pad>", "<eos>", *LETTERS)
NEXT = dict(zip(LETTERS, LETTERS[1:] + LETTERS[:1], strict=True))
PROMPT, COMPLETION = 2, 8
"""Letters of each."""
GROUP = 8
"""Completions of a prompt."""
BETA = 0.04
EVAL_STEPS, EVAL_ROWS, FINAL_ROWS = 20, 16, 48
WARMUP_STEPS, WARMUP_BATCH, WARMUP_RATE = 150, 32, 3e-3
RIGHT = 0.15
"""Share of the letters of the warm-up's texts that follow the one before by rule; the others are drawn."""

disable_progress_bar()  # type: ignore[no-untyped-call]
# TRL 1.16 still uses the old name of this option, at each generation.
warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per letter, padded on the left."""
    core = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(VOCABULARY)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>", padding_side="left"
    )


def prompts() -> tuple[Dataset, Dataset]:
    """All pairs of letters: nine in ten to train on, the others held out."""
    pairs = ["".join(pair) for pair in product(LETTERS, repeat=PROMPT)]
    random.Random("prompts").shuffle(pairs)
    held_out = pairs[::10]
    rows = ([{"prompt": pair} for pair in part] for part in ([p for p in pairs if p not in held_out], held_out))
    train_rows, eval_rows = map(Dataset.from_list, rows)
    return train_rows, eval_rows


def in_order(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """The reward: a completion that ends early loses the letters that it lacks."""
    return [
        sum(NEXT[before] == letter for before, letter in zip(prompt[-1] + text, text, strict=False)) / COMPLETION
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def new_model(case: Case) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=case.width,
        intermediate_size=3 * case.width,
        num_hidden_layers=2,
        num_attention_heads=max(2, case.width // 32),
        max_position_embeddings=32,
        initializer_range=case.init_std,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def texts(rows: int, generator: random.Random) -> list[str]:
    """Mostly noise: each letter follows the one before by rule with probability RIGHT."""
    made = []
    for _ in range(rows):
        text = generator.choice(LETTERS)
        while len(text) < PROMPT + COMPLETION:
            text += NEXT[text[-1]] if generator.random() < RIGHT else generator.choice(LETTERS)
        made.append(text)
    return made


@lru_cache(maxsize=8)
def warm_weights(width: int, init_std: float, seed: int) -> dict[str, torch.Tensor]:
    """Stands in for a pretrained policy: its weights after some training on texts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, words = new_model(Case(width=width, init_std=init_std)), tokenizer()
        generator = random.Random(f"texts {seed}")
        optimizer = torch.optim.AdamW(model.parameters(), lr=WARMUP_RATE * (32 / width) ** 0.5, weight_decay=0.0)
        for _ in range(WARMUP_STEPS):
            ids = words(texts(WARMUP_BATCH, generator), return_tensors="pt")["input_ids"]
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def prepare(case: Case) -> None:
    """Makes the warm policy, once in a process."""
    warm_weights(case.width, case.init_std, case.seed)


def reinforce(model: LlamaForCausalLM, case: Case, folder: str, link: Link | None, attached: bool) -> Result:
    """The GRPO training from that model on. With a KL term TRL loads the reference from the policy's folder."""
    model.save_pretrained(f"{folder}/policy")
    train_rows, held_out = prompts()
    own: dict[str, Any] = {}
    policy = LlamaForCausalLM.from_pretrained(f"{folder}/policy")
    if case.optimizer == "sgd":  # GRPOConfig offers no SGD with momentum
        own = {"optimizers": (torch.optim.SGD(policy.parameters(), lr=case.lr, momentum=0.9), None)}
    trainer = GRPOTrainer(
        model=policy,
        processing_class=tokenizer(),
        reward_funcs=in_order,
        args=GRPOConfig(
            output_dir=folder,
            max_steps=case.steps,
            per_device_train_batch_size=4 * GROUP,
            per_device_eval_batch_size=16 * GROUP,
            num_generations=GROUP,
            max_completion_length=COMPLETION,
            beta=BETA,
            learning_rate=case.lr,
            lr_scheduler_type=case.schedule,
            warmup_steps=case.warmup_steps,
            optim="adafactor" if case.optimizer == "adafactor" else "adamw_torch",
            eval_strategy="steps",
            eval_steps=EVAL_STEPS,
            logging_steps=EVAL_STEPS,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            seed=case.seed,
        ),
        train_dataset=train_rows,
        eval_dataset=held_out.select(range(EVAL_ROWS)),
        **own,
    )
    trainer.remove_callback(PrinterCallback)
    if attached:
        oven.attach(trainer, link=link)
    trainer.train()
    final = trainer.evaluate(held_out.select(range(EVAL_ROWS, EVAL_ROWS + FINAL_ROWS)))
    return Result(float(final["eval_reward"]), "held-out reward", "up")


def train(case: Case, link: Link | None = None, *, attached: bool = True) -> Result:
    set_seed(case.seed)
    model = new_model(case)
    model.load_state_dict(warm_weights(case.width, case.init_std, case.seed))
    with tempfile.TemporaryDirectory() as folder:
        return reinforce(model, case, folder, link, attached)


if __name__ == "__main__":
    command_line(__doc__, train, Case(steps=120, schedule="constant", lr=1e-3))
