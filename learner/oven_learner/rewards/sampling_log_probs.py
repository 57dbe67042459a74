"""Log-probabilities of completions under the policy that writes them, taken while it writes.

Generation computes the logits of every token that it samples. Kept as one number a token, they are the
`old_per_token_logps` of TRL's GRPO loss, for which it would otherwise pass over the completions once more.

They are used where they are what that pass computes: a text model in float32 without dropout (in half precision a
decoding step with its cache and a pass over the whole text round differently), and one call of transformers' `generate`
that samples each row once. Elsewhere TRL makes its pass.

Written for TRL 1.16 (`_get_per_token_logps_and_entropies`) and transformers 5.23 (`generate`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class SamplingLogProbs:
    """A forward hook of the model that generates: each call's logits, and in the next call the token that was drawn."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._known: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None
        """Logits from which the newest token was drawn: which one it was, the next call says."""
        self._whole = True

    def __call__(self, _model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Called after each of the model's calls."""
        ids, logits = kwargs.get("input_ids"), getattr(output, "logits", None)
        if ids is None or logits is None or logits.dtype != torch.float32:
            self._whole = False
            return
        if self._last is not None:
            if ids.shape != (self._last.shape[0], 1):  # another prompt, or no cache: not one text that grows by a token
                self._whole = False
                return
            self._known.append(self._of(ids))
        self._last = logits[:, -1].detach() / self._temperature

    def _of(self, ids: torch.Tensor) -> torch.Tensor:
        """Log-probability of a token a row, shape (rows, 1)."""
        assert self._last is not None
        return self._last.gather(1, ids) - self._last.logsumexp(1, keepdim=True)

    def of(self, completion_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """Log-probabilities (rows, tokens) of what was generated, 0 where `mask` is; None where they are not known."""
        rows, tokens = completion_ids.shape
        if not self._whole or self._last is None or self._last.shape[0] != rows or tokens > len(self._known) + 1:
            return None
        known = self._known if tokens <= len(self._known) else [*self._known, self._of(completion_ids[:, -1:])]
        return torch.cat(known[:tokens], dim=1) * mask


@contextlib.contextmanager
def kept(trainer: Any) -> Iterator[None]:
    """While it lasts, the first log-probabilities that `trainer` asks for are taken from the generation before."""
    if not _comparable(trainer):
        yield
        return
    found = SamplingLogProbs(trainer.temperature)
    hook = trainer.model.register_forward_hook(found, with_kwargs=True)
    compute = trainer._get_per_token_logps_and_entropies
    own = trainer.__dict__.get("_get_per_token_logps_and_entropies")

    def restore() -> None:
        hook.remove()
        if own is None:
            trainer.__dict__.pop("_get_per_token_logps_and_entropies", None)
        else:
            trainer._get_per_token_logps_and_entropies = own

    def taken(model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *rest: Any, **more: Any) -> Any:
        restore()
        if model is trainer.model:
            mask = attention_mask[:, -logits_to_keep:]
            if (log_probs := found.of(input_ids[:, -logits_to_keep:], mask)) is not None:
                return log_probs, None, None
        return compute(model, input_ids, attention_mask, logits_to_keep, *rest, **more)

    trainer._get_per_token_logps_and_entropies = taken
    try:
        yield
    finally:
        restore()


def _comparable(trainer: Any) -> bool:
    """Whether a pass over the whole text computes what generation did."""
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
    """Whether units are dropped at random in training, by a module or by a number in the configuration."""
    if any(isinstance(module, torch.nn.Dropout) and module.p for module in model.modules()):
        return True
    settings = model.config.get_text_config().to_dict()
    return any(isinstance(value, float) and value > 0 for name, value in settings.items() if "drop" in name)
