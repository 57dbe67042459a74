"""A transformers causal language model as a policy. Each token is a step."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from oven_core.errors import ConfigError
from oven_learner.losses.completion_logits import padded
from oven_learner.policies.policy import Policy, Samples, on_weights


class CausalPolicy(Policy):
    """A policy that completes prompts. Conditions are texts, or conversations if the tokenizer has a chat template.
    Outputs are texts without special tokens. Sampling uses no top-k, top-p or penalties, so that log-probabilities
    match the sampling distribution.

    Raises ConfigError for a tokenizer without an end or padding token, or with more tokens than the model.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_tokens: int = 256, temperature: float = 1.0) -> None:
        super().__init__()
        if tokenizer is None:
            raise ConfigError("a causal policy needs its tokenizer; give tokenizer=")
        if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
            lacks = "eos_token" if tokenizer.eos_token_id is None else "pad_token"
            raise ConfigError(f"the tokenizer has no {lacks}; set tokenizer.{lacks}")
        rows = int(model.get_output_embeddings().weight.shape[0])
        if len(tokenizer) > rows:
            raise ConfigError(
                f"the tokenizer has {len(tokenizer):,} tokens and the model {rows:,} rows; give the model's own "
                "tokenizer, or resize the model's embeddings"
            )
        if max_tokens < 1 or temperature <= 0:
            raise ConfigError(
                f"max_tokens={max_tokens}, temperature={temperature:g}: expected 1 or more, and more than 0"
            )
        self.model, self.tokenizer = model, tokenizer
        self.max_tokens, self.temperature = max_tokens, temperature
        self._model_parameters = set(inspect.signature(model.forward).parameters)

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        """Sample up to `max_tokens` tokens each, including the end token."""
        ids, mask = self._prompts(conditions)
        ids, mask = ids.repeat_interleave(n, dim=0), mask.repeat_interleave(n, dim=0)
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        plain = GenerationConfig(  # type: ignore[no-untyped-call]
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
            whole = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=plain)
        completions = whole[:, ids.shape[1] :]
        ended = completions == end  # (B, T)
        counted = (ended.cumsum(-1) - ended.int()) == 0  # up to and including the first end token
        completions = completions.masked_fill(~counted, pad)
        texts = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        tensors = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": completions}
        return Samples(tensors, counted.float(), texts)

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return each token's log-probability at the sampling temperature, in float32 or better. Uses the samples'
        prompts."""
        prompts, completions = samples.tensors["prompt_ids"], samples.tensors["completion_ids"]
        ids = torch.cat([prompts, completions], dim=1)
        mask = torch.cat([samples.tensors["prompt_mask"], samples.mask.long()], dim=1)
        model_inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in self._model_parameters:
            model_inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in self._model_parameters:
            model_inputs["logits_to_keep"] = completions.shape[1] + 1
        logits = self.model(**model_inputs).logits[:, -completions.shape[1] - 1 : -1] / self.temperature
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_probs: Tensor = logits.log_softmax(-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)
        return log_probs

    def _prompts(self, conditions: Sequence[Any]) -> tuple[Tensor, Tensor]:
        texts = [
            condition
            if isinstance(condition, str)
            else self.tokenizer.apply_chat_template(condition, tokenize=False, add_generation_prompt=True)
            for condition in conditions
        ]
        rows = [
            self.tokenizer(text, add_special_tokens=isinstance(condition, str))["input_ids"]
            for text, condition in zip(texts, conditions, strict=True)
        ]
        if empty := [text for text, row in zip(texts, rows, strict=True) if not row]:
            raise ConfigError(f"the prompt {empty[0]!r} has no tokens")
        return padded(rows, on_weights(torch.zeros(()), self.model).device, pad_left=True)
