"""Random jobs of an oracle, each pass watched from outside: whose vectors its rows get, and the log-probabilities.

Nothing trains (the learning rate is 0) and the reference is the policy's own adapter, so all passes over a completion
must agree.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from tests.support.activations import ASKED, FAMILIES, MODEL, SIZE, lora, model, oracle, stirred, tokenizer

from oven_recipes.activations.activation_store import ActivationStore
from oven_recipes.activations.capture import Activation
from oven_recipes.activations.grpo_trainer import ActivationGRPOTrainer
from oven_recipes.activations.model_blocks import decoder_blocks, model_body, unwrap_model
from oven_recipes.activations.placeholders import PLACEHOLDER, oracle_prompt

NUMBER = re.compile(r"is it (\d+) so")
"""Which row of the data a prompt is: the question says it, and no part of the injection reads it."""


def data(store: ActivationStore, draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Return rows with 1 to 20 activations, some without, and questions of all lengths with ` ?` and `Layer: 1`."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    rows: list[dict[str, Any]] = []
    for number in range(count):
        question = f"is it {number} so" + "".join(
            draw.choice([f" {draw.choice(ASKED)}", PLACEHOLDER, "\nLayer: 1\n ? ?"]) for _ in range(draw.randrange(6))
        )
        kind, layer, many = draw.random(), draw.randrange(4), draw.choice([1, 2, 3, 5, 20])
        vectors = torch.randn(many, SIZE, generator=generator) * 10 ** draw.uniform(-2, 2)
        [key] = store.add(MODEL, [Activation(str(number), layer, vectors)])
        if kind < 0.1:
            rows.append({"prompt": question.replace("\nLayer: 1\n", " "), "activation": None})
        else:
            rows.append({"prompt": oracle_prompt(layer, many, question), "activation": key})
    return rows


class Watch:
    """A recorder of block 1's output before and after the injection, with hooks that are registered before it."""

    def __init__(self, policy: Any, rows: list[dict[str, Any]], store: ActivationStore) -> None:
        self._words = tokenizer()
        self._placeholder = self._words.convert_tokens_to_ids(PLACEHOLDER)
        self.ids = [self._words(row["prompt"])["input_ids"] for row in rows]
        keys = [row["activation"] for row in rows]
        self.wanted = [None if key is None else store.get(key) for key in keys]
        self.rows = self.checked = self.wrong = 0
        self.apart = 0.0
        self.known: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        self.logits: list[torch.Tensor] = []
        self.passes = 0
        model_body(policy).register_forward_pre_hook(self._begin, with_kwargs=True)
        decoder_blocks(policy)[1].register_forward_hook(self._before)
        decoder_blocks(policy)[2].register_forward_pre_hook(self._after, with_kwargs=True)
        unwrap_model(policy).register_forward_hook(self._record_logits)

    def number(self, ids: list[int]) -> int:
        match = NUMBER.search(str(self._words.decode(ids, skip_special_tokens=True)))
        assert match is not None
        return int(match[1])

    def _begin(self, _module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._inputs = args[0] if args else kwargs["input_ids"]
        cache = kwargs.get("past_key_values")
        self._continued = cache is not None and cache.get_seq_length() > 0

    def _before(self, _module: Any, _args: Any, output: Any) -> None:
        self._raw = (output[0] if isinstance(output, tuple) else output).detach().clone()

    def _after(self, _module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        hidden = (args[0] if args else kwargs["hidden_states"]).detach()
        self.passes += 1
        moved = (hidden != self._raw).any(dim=-1)  # (B, T)
        if self._continued:
            self.wrong += int(moved.any(dim=1).sum())
            return
        for row, ids in enumerate(self._inputs.tolist()):
            self.checked += 1
            expected, places = self._expected(ids, self._raw[row])
            still = torch.ones(len(ids), dtype=torch.bool)
            still[places] = False
            right = torch.allclose(hidden[row], expected, rtol=1e-5, atol=1e-5)
            self.wrong += not right or bool(moved[row, still].any())

    def _expected(self, ids: list[int], raw: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Compute the block's expected output for a row and the positions where the actual one differs."""
        number = self.number(ids)
        wanted, prompt = self.wanted[number], self.ids[number]
        if wanted is None:
            return raw, slice(0, 0)
        start = next(index for index in range(len(ids)) if ids[index : index + len(prompt)] == prompt)
        first = start + prompt.index(self._placeholder)
        places = slice(first, first + len(wanted))
        h, expected = raw[places], raw.clone()
        expected[places] = h + h.norm(dim=1, keepdim=True) * wanted / wanted.norm(dim=1, keepdim=True)
        return expected, places

    def _record_logits(self, _module: Any, _args: Any, output: Any) -> None:
        if getattr(output, "logits", None) is not None:
            self.logits.append(output.logits[:, -1].detach())

    def agree(self, prompt: list[int], completion: list[int], log_probs: torch.Tensor) -> None:
        key = (self.number(prompt), tuple(completion))
        known = self.known.setdefault(key, log_probs)
        self.apart = max(self.apart, float((known - log_probs).abs().max()))


class Watched(ActivationGRPOTrainer):
    """A trainer that passes the log-probabilities of each completion to its watch."""

    watch: Watch

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.watch.logits.clear()
        self.watch.rows += len(prompt_ids)
        completions, rest = super()._generate_single_turn(prompt_ids, *args, **kwargs)  # type: ignore[no-untyped-call]
        log_probabilities = torch.stack(self.watch.logits, dim=1).log_softmax(-1)  # (B, C, V)
        for row, (prompt, tokens) in enumerate(zip(prompt_ids, completions, strict=True)):
            positions = torch.arange(len(tokens))
            self.watch.agree(prompt, tokens, log_probabilities[row, positions, torch.tensor(tokens)])
        return completions, rest

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *rest: Any, **more: Any
    ) -> Any:
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *rest, **more
        )
        for ids, mask, log_probs in zip(input_ids.tolist(), attention_mask, result[0].detach(), strict=True):
            length = int(mask[-logits_to_keep:].sum())
            tokens = ids[-logits_to_keep:][:length]
            self.watch.agree(ids[:-logits_to_keep], tokens, log_probs[:length])
        return result


def settings(draw: random.Random, ranks: int) -> dict[str, Any]:
    group, chunk, chunks = draw.choice([2, 4]), draw.choice([2, 6, 16, 24]), draw.choice([1, 2, 3, 4])
    while chunk * chunks * ranks % group:
        chunks += 1
    checkpointing = draw.choice([None, {"use_reentrant": False}, {"use_reentrant": ranks == 1}])  # DDP takes one kind
    return {
        "num_generations": group,
        "per_device_train_batch_size": chunk,
        "steps_per_generation": chunks,
        "gradient_accumulation_steps": draw.choice([1, 2]),
        "num_iterations": draw.choice([1, 2]),
        "pad_to_multiple_of": draw.choice([None, 8]),
        "generation_kwargs": {"use_cache": draw.random() < 0.6},
        "gradient_checkpointing": checkpointing is not None,
        "gradient_checkpointing_kwargs": checkpointing,
        "max_completion_length": draw.choice([2, 5, 9]),
        "beta": draw.choice([0.0, 0.05, 0.05]),
        "learning_rate": 0.0,
        "seed": draw.randrange(1000),
        "logging_steps": 10**6,
        **({"ddp_backend": "gloo", "ddp_find_unused_parameters": False} if ranks > 1 else {}),
    }


def watched(folder: Path, seed: int, ranks: int = 1, steps: int = 12) -> dict[str, float]:
    """Run one job and return what its watch counted on this rank."""
    draw = random.Random(seed)
    options = settings(draw, ranks)
    family = FAMILIES[seed % len(FAMILIES)]
    store = ActivationStore(folder / f"activations-{seed}-{os.environ.get('RANK', 0)}")
    rows = data(store, draw, 40)
    policy = stirred(get_peft_model(model(family, spread=0.2), lora(fan_in_fan_out=family == "gpt2")), 0.05)
    watch = Watch(policy, rows, store)
    job = oracle(folder / f"job-{seed}", policy, rows, cls=Watched, store=store, max_steps=steps, **options)
    job.watch = watch
    job.train()
    return {
        "rows": watch.rows, "in_passes": watch.checked, "passes": watch.passes, "wrong": watch.wrong,
        "apart": watch.apart,
    }  # fmt: skip


def together(results: list[dict[str, float]]) -> dict[str, float]:
    summed = {name: sum(result[name] for result in results) for name in ("rows", "in_passes", "passes", "wrong")}
    return summed | {"apart": max(result["apart"] for result in results)}


def until(folder: Path, rows: int, seed: int = 0, ranks: int = 1) -> dict[str, float]:
    """Run jobs until this rank has seen enough rows. Few rows get short jobs."""
    steps = 4 if rows < 100 else 12
    results = [watched(folder, seed, ranks, steps)]
    while together(results)["rows"] < rows:
        seed += 1
        results.append(watched(folder, seed, ranks, steps))
    return together(results)
