"""The teachers of a TRL trainer. All are loaded on addition, and a swap is an assignment.

Also finds the reference model of a policy: GRPO's reference, a teacher in its place, or the policy without its adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model

from oven_core.errors import ConfigError
from oven_learner.teachers import checks, memory, model_and_tokenizer, quantization
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form
from oven_learner.teachers.named_teachers import LIMIT_BYTES, Candidate, NamedTeachers
from oven_learner.teachers.placement import as_trainer_asks, chosen_form, place_model


def has_adapter(trainer: Any) -> bool:
    """Whether the policy is a PEFT model. The model below its adapter is then always available as a reference."""
    return bool(is_peft_model(trainer.model))


def has_reference(trainer: Any) -> bool:
    """Whether a GRPOTrainer has a reference, whatever its β is."""
    return trainer.ref_model is not None or has_adapter(trainer)


@contextmanager
def reference(trainer: Any) -> Iterator[Any]:
    """Provide the reference model for scoring, chosen as in TRL 1.16 (`_generate_and_score_completions`)."""
    with teaching(trainer, trainer.ref_model) as model:
        yield model


@contextmanager
def teaching(trainer: Any, model: Any) -> Iterator[Any]:
    """Provide a teacher's model for scoring; None means the policy without its adapter."""
    if model is not None:
        yield model
        return
    from trl.trainer.utils import use_adapter

    policy = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None):
        yield policy


class Teachers(NamedTeachers[Any]):
    """The teachers of a TRL trainer's policy by name, in the order of addition: weakest first.

    For a GRPOTrainer they replace its reference model, for a DistillationTrainer its `teacher_model`. The trainer's own
    model comes first, with the name `own`. With PEFT that is the policy without its adapter, unless it has another. A
    GRPOTrainer with beta 0 has none: add some, `swap` to the first, and set `trainer.beta`. The policy then need not be
    on disk, from where TRL would load its reference.

    An attached GRPOTrainer publishes `kl/<teacher>` for inactive teachers every `kl_every` steps; 0 means never.
    `offload_folder` is for teachers on disk. None means the system's folder for temporary files, which is in memory on
    some systems.

    Raises ConfigError under FSDP and DeepSpeed, which shard the model when the trainer is created. Raises it for
    `sync_ref_model`, which would keep moving the original model, and for a negative `kl_every`.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        limit_bytes: int = LIMIT_BYTES,
        own: str = "initial",
        kl_every: int = 25,
        offload_folder: Path | str | None = None,
    ) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError("teachers cannot be swapped under FSDP or DeepSpeed; train with DDP or in one process")
        if getattr(trainer.args, "sync_ref_model", False):
            raise ConfigError("sync_ref_model moves the reference model itself; leave it off to swap teachers")
        if kl_every < 0:
            raise ConfigError(f"kl_every is {kl_every}; give a number of steps, or 0 for never")
        super().__init__(limit_bytes, offload_folder)
        self.kl_every = kl_every
        self._trainer = trainer
        self._distils = hasattr(trainer, "teacher_model")
        if self._present is not None or (has_adapter(trainer) and not self._distils):
            self._models[own] = self._present  # None is TRL's sign for the policy without its adapter
            self._order.append(own)

    @property
    def idle(self) -> Mapping[str, Any]:
        """Name → model of the loaded but inactive teachers; None is the policy without its adapter."""
        return {name: model for name, model in self._models.items() if model is not self._present}

    def parameters(self, name: str) -> int:
        """Return the number of parameters. Raises the same errors as `teachers[name]`."""
        model = self[name]
        if model is not None:
            return sum(parameter.numel() for parameter in model.parameters())
        return sum(parameter.numel() for parameter in self._trainer.model.parameters() if not parameter.requires_grad)

    @property
    def active(self) -> str:
        """Name of the trainer's current teacher. Raises ConfigError if it is not one of these."""
        for name, model in self._models.items():
            if model is self._present:
                return name
        raise ConfigError(
            f"the trainer's teacher is not one of ({', '.join(self._models) or 'there are none'}); call swap(name)"
        )

    def swap(self, name: str) -> None:
        """Make `name` the teacher from the next optimizer step on. Call it between two steps.

        A DistillationTrainer uses it in every loss. In a GRPOTrainer, buffered completions (steps_per_generation or
        num_iterations above 1) have the old teacher's log-probabilities. They are dropped, and the next step generates
        again from the same prompts. At a generation boundary that costs nothing. Raises UnknownNameError, or
        TeacherRefusedError with the reason.
        """
        model = self[name]
        if model is self._present:
            return
        if self._distils:
            self._trainer.teacher_model = model
            return
        self._trainer.ref_model = model
        self._trainer._buffered_inputs = None

    @property
    def _present(self) -> Any:
        return self._trainer.teacher_model if self._distils else self._trainer.ref_model

    def _prepare(self, name: str, teacher: Any, tokenizer: Any, beside_training: bool) -> Candidate[Any]:
        trainer, device = self._trainer, self._trainer.accelerator.device
        form: Form = "resident"
        config = teacher if isinstance(teacher, TeacherConfig) else None
        if config is not None:
            form = chosen_form(config, device, self._limit - self._held)
            tokenizer = model_and_tokenizer.load_tokenizer(config)
            teacher = model_and_tokenizer.load_model(config, form, device, beside_training=beside_training)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        checks.check_own_weights(policy, teacher)
        checks.check_size(teacher, self._held, self._limit, form)
        checks.check_vocabulary(policy, teacher, trainer.processing_class, tokenizer, equal_rows=self._distils)
        if form in ("8 bits", "4 bits"):
            quantization.quantize(teacher, 8 if form == "8 bits" else 4, device)
        if not self._distils:
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(
                teacher, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
            )
        place_model(teacher, device, form, self._offload_folder, head_stays=self._distils)
        memory.return_freed()
        return Candidate(name, teacher, form, config)

    def _admit(self, candidate: Candidate[Any]) -> Any:
        accelerator = self._trainer.accelerator
        # Check again: another teacher may have been added meanwhile.
        checks.check_size(candidate.model, self._held, self._limit, candidate.form)
        try:
            ready = as_trainer_asks(candidate.model, accelerator, candidate.form)
            checks.check_scores(self._trainer, ready)
        except Exception:
            # otherwise it stays in memory
            accelerator._models[:] = [model for model in accelerator._models if model is not candidate.model]
            raise
        memory.return_freed()
        return ready
