"""TRL's GRPOTrainer for an oracle. Activations are injected into every pass of the policy and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import ProcessorMixin

from oven_core.errors import ConfigError
from oven_learner.losses.channel_trainer import ChannelTrainer
from oven_recipes.activations.activation_store import ActivationStore, layer_in_key
from oven_recipes.activations.injection import INJECTION_BLOCK, ActivationInjection

BATCH_KEY = "oven_activation"
"""Key in TRL's batch for the rows' activation keys. TRL shuffles and splits this list together with other columns."""
COLUMN = "activation"
"""Name of the dataset's column with the activation keys."""


class ActivationGRPOTrainer(ChannelTrainer):
    """A GRPOTrainer for rows with a `prompt` (see `oracle_prompt`) and an `activation`, a key into `store`. The
    activation's vectors are injected in generation, and when TRL computes log-probabilities and the loss. Rows without
    an activation train exactly as in a plain GRPOTrainer. The only exception is a model with learnt positions (GPT-2):
    here the positions of a row start at the row's first token, while TRL also counts the padding.

    Raises ConfigError for features that do not run hooks or that create rows: vLLM, continuous batching, torch.compile,
    a static cache, tools, rollouts and channels. Overrides methods of TRL 1.16."""

    def __init__(self, *args: Any, store: ActivationStore, block: int = INJECTION_BLOCK, **kwargs: Any) -> None:
        settings = kwargs.get("args") or (args[2] if len(args) > 2 else None)  # GRPOTrainer's third parameter
        _check_unsupported(settings, kwargs)
        super().__init__(*args, **kwargs)
        if isinstance(self.processing_class, ProcessorMixin):
            raise ConfigError("an oracle reads text and activations, but no images; pass a tokenizer, not a processor")
        self.store = store
        self.injection = ActivationInjection(self.model, self.processing_class, block)
        if store.hidden_size not in (None, self.injection.hidden_size):
            raise ConfigError(
                f"{store.folder} has activations of size {store.hidden_size}, but the model's hidden size is "
                f"{self.injection.hidden_size}; capture them from this model, or one with the same hidden size"
            )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        keys = [row.get(COLUMN) for row in inputs]
        with self._inject_rows(keys):
            batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        batch[BATCH_KEY] = keys
        return batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with self.injection.vectors(None):  # a reward function may run the policy on texts without activations
            return super()._calculate_rewards(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        with self._inject_rows(inputs[BATCH_KEY]):
            return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Ignore `batch_size`, because the vectors are set for the rows of the whole batch."""
        self.injection.attach(model)  # needed if TRL has created a new reference model
        return super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **kwargs)

    def _inject_rows(self, keys: Sequence[str | None]) -> Any:
        if all(key is None for key in keys):
            return self.injection.vectors(None)
        vectors = [None if key is None else self.store.get(key) for key in keys]
        return self.injection.vectors(vectors, [None if key is None else layer_in_key(key) for key in keys])


def _check_unsupported(settings: Any, options: dict[str, Any]) -> None:
    """Raise ConfigError for a GRPOConfig, or keyword arguments of the trainer, with which the injection fails."""
    problems = {
        "use_vllm": "vLLM does not run it",
        "use_transformers_continuous_batching": "continuous batching packs rows and does not run it",
        "use_transformers_paged": "paged attention packs rows",
        "torch_compile": "a compiled model keeps the rows with which it was traced",
    }
    for name, problem in problems.items():
        if getattr(settings, name, False):
            raise ConfigError(f"activations are injected by a hook, but {problem}; set {name}=False")
    if getattr(settings, "cache_implementation", None) == "static":
        raise ConfigError(
            "activations are injected by a hook, but a static cache compiles it; omit cache_implementation"
        )
    for name in ("tools", "environment_factory", "rollout_func", "channels"):
        if options.get(name):
            raise ConfigError(f"{name} would run passes with other rows than the batch; train an oracle without {name}")
