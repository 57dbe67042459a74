"""Record log-probabilities of completions during generation.

Generation computes the logits of every sampled token. One number per token suffices for `old_per_token_logps` of TRL's
GRPO loss, which otherwise needs another pass over the completions.

They are only used if they equal the results of that pass. That needs a text model in float32 without dropout, because
in half precision cached decoding and a full pass round differently. It also needs a single call of transformers'
`generate` that samples each row once. Otherwise TRL makes its pass.

Written for TRL 1.16 (`_get_per_token_logps_and_entropies`) and transformers 5.23 (`generate`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class SamplingLogProbs:
    """A forward hook of the generating model. It stores each call's logits, and the next call shows the sampled
    token."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._known: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None
        """Logits of the newest token; the next call shows which token was sampled."""
        self._whole = True

    def __call__(self, _model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Called after each of the model's calls."""
        ids, logits = kwargs.get("input_ids"), getattr(output, "logits", None)
        if ids is None or logits is None or logits.dtype != torch.float32:
            self._whole = False
            return
        if self._last is not None:
            if ids.shape != (self._last.shape[0], 1):  # another prompt or no cache: not a text that grows by one token
                self._whole = False
                return
            self._known.append(self._newest_log_probs(ids))
        self._last = logits[:, -1].detach() / self._temperature

    def _newest_log_probs(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of one token per row, shape (rows, 1)."""
        assert self._last is not None
        return self._last.gather(1, ids) - self._last.logsumexp(1, keepdim=True)

    def for_completions(self, completion_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """Return log-probabilities (rows, tokens) of the completions, 0 where `mask` is; None if unknown."""
        rows, tokens = completion_ids.shape
        if not self._whole or self._last is None or self._last.shape[0] != rows or tokens > len(self._known) + 1:
            return None
        recorded = (
            self._known
            if tokens <= len(self._known)
            else [*self._known, self._newest_log_probs(completion_ids[:, -1:])]
        )
        return torch.cat(recorded[:tokens], dim=1) * mask


@contextlib.contextmanager
def recording(trainer: Any) -> Iterator[None]:
    """While the context lasts, `trainer`'s first log-probabilities come from the generation."""
    if not _comparable(trainer):
        yield
        return
    recorder = SamplingLogProbs(trainer.temperature)
    hook = trainer.model.register_forward_hook(recorder, with_kwargs=True)
    compute = trainer._get_per_token_logps_and_entropies
    own = trainer.__dict__.get("_get_per_token_logps_and_entropies")

    def restore() -> None:
        hook.remove()
        if own is None:
            trainer.__dict__.pop("_get_per_token_logps_and_entropies", None)
        else:
            trainer._get_per_token_logps_and_entropies = own

    def from_generation(
        model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *rest: Any, **more: Any
    ) -> Any:
        restore()
        if model is trainer.model:
            mask = attention_mask[:, -logits_to_keep:]
            if (log_probs := recorder.for_completions(input_ids[:, -logits_to_keep:], mask)) is not None:
                return log_probs, None, None
        return compute(model, input_ids, attention_mask, logits_to_keep, *rest, **more)

    trainer._get_per_token_logps_and_entropies = from_generation
    try:
        yield
    finally:
        restore()


def _comparable(trainer: Any) -> bool:
    """Whether a pass over the whole text computes the same numbers as generation."""
    model = trainer.model
    several_calls = trainer.use_vllm or trainer.use_transformers_continuous_batching or trainer.tools
    return not (
        several_calls
        or trainer.environments
        or trainer.accelerator.mixed_precision != "no"
        or trainer.args.cast_lm_head_to_fp32
        or any(parameter.dtype != torch.float32 for parameter in model.parameters())
        or _drops(model)
    )


def _drops(model: Any) -> bool:
    """Whether training uses dropout, by a module or by a number in the configuration."""
    if any(isinstance(module, torch.nn.Dropout) and module.p for module in model.modules()):
        return True
    settings = model.config.get_text_config().to_dict()
    return any(isinstance(value, float) and value > 0 for name, value in settings.items() if "drop" in name)
