"""The registry of teachers of one GRPOTrainer: all are loaded when they are added, and a swap is an assignment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from oven_controller.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_learner.teachers import admission

LIMIT_BYTES = 16 * 1024**3
"""Of all teachers together, since all stay loaded."""


class Teachers:
    """Reference models for TRL's GRPOTrainer, by name, in the order in which they were added: weakest first.

    The trainer's own reference model, where it has one, is the first, called `own`. A trainer that was made with
    beta 0 has none: add some, `swap` to the one to begin with, and set `trainer.beta`; the policy then need not lie
    on disk, from where TRL would load its reference.

    Raises ConfigError where a reference model cannot be replaced: under FSDP and DeepSpeed, which shard it when the
    trainer is made, and with `sync_ref_model`, which goes on moving the one that it was given.
    """

    def __init__(self, trainer: Any, *, limit_bytes: int = LIMIT_BYTES, own: str = "initial") -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError("teachers cannot be swapped under FSDP or DeepSpeed; train with DDP or in one process")
        if trainer.args.sync_ref_model:
            raise ConfigError("sync_ref_model moves the reference model itself; leave it off to swap teachers")
        self._trainer = trainer
        self._limit = limit_bytes
        self._models: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._order: list[str] = []
        if trainer.ref_model is not None:
            self._models[own] = trainer.ref_model
            self._order.append(own)

    def add(self, name: str, model: Any, tokenizer: Any = None) -> None:
        """Check `model` against the policy, freeze it, and put it on the trainer's device, ready to be swapped to.

        Raises TeacherRefusedError when it is too large, has another vocabulary or cannot score the policy's tokens. The
        name is then known with the reason, and asking for it later is turned down with that. `tokenizer` lets the
        token ids themselves be compared.
        """
        if not name or name in self._order:
            raise ConfigError(f"a teacher named {name!r} is there already" if name else "a teacher needs a name")
        self._order.append(name)
        try:
            self._models[name] = self._admitted(model, tokenizer)
        except TeacherRefusedError as error:
            self._refused[name] = f"teacher {name!r} is refused: {error}"
            raise TeacherRefusedError(self._refused[name]) from error

    @property
    def names(self) -> tuple[str, ...]:
        """Weakest first; those that were refused keep their place."""
        return tuple(self._order)

    @property
    def refused(self) -> Mapping[str, str]:
        """Name → why."""
        return MappingProxyType(self._refused)

    def __len__(self) -> int:
        """How many are loaded."""
        return len(self._models)

    def parameters(self, name: str) -> int:
        """Raises as `swap` does."""
        return sum(parameter.numel() for parameter in self._model(name).parameters())

    @property
    def active(self) -> str:
        """Name of the reference model that the trainer has now. Raises ConfigError if it is none of these."""
        for name, model in self._models.items():
            if model is self._trainer.ref_model:
                return name
        raise ConfigError(
            f"the trainer's reference model is none of the teachers ({', '.join(self._models) or 'there are none'}); "
            "call swap(name)"
        )

    def swap(self, name: str) -> None:
        """Make `name` the reference model from the next optimizer step on. Call it between two steps.

        Completions that wait in TRL's buffer (steps_per_generation or num_iterations above 1) carry the old teacher's
        log-probabilities: they are dropped, and the next step generates anew from the same prompts. At a generation
        boundary that costs nothing. Raises UnknownNameError, or TeacherRefusedError with the reason.
        """
        model = self._model(name)
        if model is self._trainer.ref_model:
            return
        self._trainer.ref_model = model
        self._trainer._buffered_inputs = None

    def _model(self, name: str) -> Any:
        if name in self._refused:
            raise TeacherRefusedError(self._refused[name])
        if name not in self._models:
            raise UnknownNameError("teacher", name, self._models)
        return self._models[name]

    def _admitted(self, model: Any, tokenizer: Any) -> Any:
        from trl.trainer.utils import add_fused_lm_head

        trainer = self._trainer
        policy = trainer.accelerator.unwrap_model(trainer.model)
        admission.check_own_weights(policy, model)
        admission.check_size(model, sum(map(admission.size_bytes, self._models.values())), self._limit)
        admission.check_vocabulary(policy, model, trainer.processing_class, tokenizer)
        add_fused_lm_head(
            model, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
        )
        model.eval()
        model.requires_grad_(False)
        ready = trainer.accelerator.prepare_model(model, evaluation_mode=True)
        admission.check_scores(trainer, ready)
        return ready
