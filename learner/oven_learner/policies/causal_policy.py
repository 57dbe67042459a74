"""Causal language models from transformers as policies. Each token is a step."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from oven_core.errors import ConfigError
from oven_learner.losses.completion_logits import pad_rows
from oven_learner.policies.policy import Policy, Samples, network_device


class CausalPolicy(Policy):
    """A policy that completes prompts. Conditions are strings, or conversations if the tokenizer has a chat template.
    Outputs are strings without special tokens. Sampling uses no top-k, top-p or penalties, so log-probabilities match
    it. Raises ConfigError if the tokenizer lacks an end or padding token, or has more tokens than the model."""

    def __init__(self, model: Any, tokenizer: Any, *, max_tokens: int = 256, temperature: float = 1.0) -> None:
        super().__init__()
        if tokenizer is None:
            raise ConfigError("a causal policy needs a tokenizer; pass tokenizer=")
        for name, token_id in (("eos_token", tokenizer.eos_token_id), ("pad_token", tokenizer.pad_token_id)):
            if token_id is None:
                raise ConfigError(f"the tokenizer has no {name}; set tokenizer.{name}")
        model_tokens = int(model.get_output_embeddings().weight.shape[0])
        if len(tokenizer) > model_tokens:
            raise ConfigError(
                f"the tokenizer has {len(tokenizer):,} tokens, but the model only has {model_tokens:,}; use the "
                "model's own tokenizer, or resize the model's embeddings"
            )
        if max_tokens < 1 or temperature <= 0:
            raise ConfigError(
                f"max_tokens={max_tokens} or temperature={temperature:g} is invalid; expected max_tokens of 1 or more, "
                "and a temperature above 0"
            )
        self.model, self.tokenizer = model, tokenizer
        self.max_tokens, self.temperature = max_tokens, temperature
        self._forward_parameters = set(inspect.signature(model.forward).parameters)

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        """Sample `n` completions per condition. Each has at most `max_tokens` tokens, including the end token."""
        ids, mask = self._encode_prompts(conditions)
        ids, mask = ids.repeat_interleave(n, dim=0), mask.repeat_interleave(n, dim=0)
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            temperature=self.temperature,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            max_new_tokens=self.max_tokens,
            eos_token_id=end,
            pad_token_id=pad,
        )
        with torch.no_grad():
            sequences = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=generation_config)
        completions = sequences[:, ids.shape[1] :]
        is_end = completions == end  # (B, T)
        is_counted = (is_end.cumsum(-1) - is_end.int()) == 0  # up to and including the first end token
        completions = completions.masked_fill(~is_counted, pad)
        texts = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        tensors = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": completions}
        return Samples(tensors, is_counted.float(), texts)

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return the log-probability of each token at the sampling temperature, in at least float32. The prompts are
        part of the samples, so `conditions` is unused."""
        prompts, completions = samples.tensors["prompt_ids"], samples.tensors["completion_ids"]
        ids = torch.cat([prompts, completions], dim=1)
        mask = torch.cat([samples.tensors["prompt_mask"], samples.mask.long()], dim=1)
        model_inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in self._forward_parameters:
            model_inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in self._forward_parameters:
            model_inputs["logits_to_keep"] = completions.shape[1] + 1
        logits = self.model(**model_inputs).logits[:, -completions.shape[1] - 1 : -1] / self.temperature
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_probs: Tensor = logits.log_softmax(-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)
        return log_probs

    def _encode_prompts(self, conditions: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the left-padded token ids of the prompts and their mask, each (prompts, P)."""
        rows = []
        for condition in conditions:
            is_text = isinstance(condition, str)
            text = condition
            if not is_text:
                text = self.tokenizer.apply_chat_template(condition, tokenize=False, add_generation_prompt=True)
            row = self.tokenizer(text, add_special_tokens=is_text)["input_ids"]
            if not row:
                raise ConfigError(f"the prompt {text!r} has no tokens")
            rows.append(row)
        return pad_rows(rows, network_device(self.model), pad_left=True)
