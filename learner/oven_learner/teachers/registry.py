"""The registry of teachers of one trainer: all are loaded when they are added, and a swap is an assignment.

Beside it the model that a policy is held to: GRPO's reference, a teacher in its place, or the policy without its
adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from accelerate.utils import is_peft_model

from oven_controller.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_learner.teachers import checks, loading, memory, quantization
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form
from oven_learner.teachers.placement import chosen_form, place

log = logging.getLogger("oven.learner")


def has_adapter(trainer: Any) -> bool:
    """Whether the policy is a PEFT model: the model below its adapter is then a reference that is always there."""
    return bool(is_peft_model(trainer.model))


def has_reference(trainer: Any) -> bool:
    """Whether a GRPOTrainer has something to be held to, whatever its β is."""
    return trainer.ref_model is not None or has_adapter(trainer)


@contextmanager
def reference(trainer: Any) -> Iterator[Any]:
    """The model to score with while the context lasts; as TRL 1.16 chooses it (`_generate_and_score_completions`)."""
    with teaching(trainer, trainer.ref_model) as model:
        yield model


@contextmanager
def teaching(trainer: Any, model: Any) -> Iterator[Any]:
    """The same for any teacher's model, of which None is the policy without its adapter."""
    if model is not None:
        yield model
        return
    from trl.trainer.utils import use_adapter

    policy = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None):
        yield policy


LIMIT_BYTES = 16 * 1024**3
"""Of all teachers together, since all stay loaded."""


class Teachers:
    """The models that may teach a TRL trainer's policy, by name, in the order in which they were added: weakest first.

    For a GRPOTrainer they are its reference model, for a DistillationTrainer its `teacher_model`. The one that the
    trainer has is the first, called `own`; with PEFT that is the policy without its adapter, unless it was given
    another. A GRPOTrainer that was made with beta 0 has none: add some, `swap` to the one to begin with, and set
    `trainer.beta`; the policy then need not lie on disk, from where TRL would load its reference.

    An attached GRPOTrainer publishes `kl/<teacher>` of the teachers that are not active every `kl_every` steps, 0:
    never. `offload_folder` is where teachers that wait on disk have their weights; None: the system's folder for
    temporary files, which on some systems is in memory.

    Raises ConfigError where the model cannot be replaced: under FSDP and DeepSpeed, which shard it when the trainer is
    made, and with `sync_ref_model`, which continues moving the one that it was given; and for a negative `kl_every`.
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
        self.kl_every = kl_every
        self._trainer = trainer
        self._offload_folder = Path(offload_folder) if offload_folder is not None else None
        self._forms: dict[str, Form] = {}
        self._distils = hasattr(trainer, "teacher_model")
        self._limit = limit_bytes
        self._models: dict[str, Any] = {}
        """None is TRL's sign for the policy without its adapter."""
        self.added: Callable[[], object] = lambda: None
        """Called after each that was added: what is attached offers it then. To add one is not to choose it."""
        self._refused: dict[str, str] = {}
        self._order: list[str] = []
        if self._present is not None or (has_adapter(trainer) and not self._distils):
            self._models[own] = self._present
            self._order.append(own)

    def add(self, name: str, model: Any, tokenizer: Any = None) -> None:
        """Check `model` against the policy, freeze it, and put it on the trainer's device, ready to be swapped to. In a
        running training, between two steps and on all ranks, it becomes a choice of `teacher.active` at the next step.

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
        except Exception:
            self._order.remove(name)  # nothing is known of it: not even that it does not fit
            raise
        self.added()

    def register(self, config: TeacherConfig) -> None:
        """Load what `config` describes, and add it, kept in memory as its strategy says. Raises as `add` does."""
        self.add(config.name, config)

    def strategy(self, name: str) -> Form:
        """How that teacher is kept: "resident", "8 bits", "4 bits" or "offload". Raises as `swap` does."""
        self._model(name)
        return self._forms.get(name, "resident")

    @property
    def idle(self) -> Mapping[str, Any]:
        """Name → model of those that are loaded and not active; None is the policy without its adapter."""
        return {name: model for name, model in self._models.items() if model is not self._present}

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

    def __getitem__(self, name: str) -> Any:
        """The model; None is the policy without its adapter. Raises as `swap` does."""
        return self._model(name)

    def parameters(self, name: str) -> int:
        """Raises as `swap` does."""
        model = self._model(name)
        if model is not None:
            return sum(parameter.numel() for parameter in model.parameters())
        return sum(parameter.numel() for parameter in self._trainer.model.parameters() if not parameter.requires_grad)

    @property
    def active(self) -> str:
        """Name of the teacher that the trainer has now. Raises ConfigError if it is none of these."""
        for name, model in self._models.items():
            if model is self._present:
                return name
        raise ConfigError(
            f"the trainer's teacher is none of the teachers ({', '.join(self._models) or 'there are none'}); "
            "call swap(name)"
        )

    def swap(self, name: str) -> None:
        """Make `name` the teacher from the next optimizer step on. Call it between two steps.

        A DistillationTrainer asks it in every loss. In a GRPOTrainer, completions that wait in the buffer
        (steps_per_generation or num_iterations above 1) carry the old teacher's log-probabilities: they are dropped,
        and the next step generates anew from the same prompts. At a generation boundary that costs nothing. Raises
        UnknownNameError, or TeacherRefusedError with the reason.
        """
        model = self._model(name)
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

    def _model(self, name: str) -> Any:
        if name in self._refused:
            raise TeacherRefusedError(self._refused[name])
        if name not in self._models:
            raise UnknownNameError("teacher", name, self._models)
        return self._models[name]

    def _admitted(self, model: Any, tokenizer: Any) -> Any:
        """`model` ready to be asked, after every check; a TeacherConfig is loaded first."""
        accelerator, config = self._trainer.accelerator, None
        form: Form = "resident"
        held = sum(checks.size_bytes(one) for one in self._models.values() if one is not None)
        if isinstance(model, TeacherConfig):
            config, form = model, chosen_form(model, accelerator.device, self._limit - held)
            tokenizer = loading.load_tokenizer(config)
            model = loading.load_model(config, form, accelerator.device)
        try:
            ready = self._checked(model, tokenizer, form, held)
        except Exception:
            accelerator._models[:] = [one for one in accelerator._models if one is not model]  # or it stays in memory
            raise
        if config is not None:
            self._forms[config.name] = form
            log.info("teacher %r is kept as %r, and holds %s bytes", config.name, form, f"{memory.own_bytes(model):,}")
        return ready

    def _checked(self, model: Any, tokenizer: Any, form: Form, held: int) -> Any:
        trainer = self._trainer
        policy = trainer.accelerator.unwrap_model(trainer.model)
        checks.check_own_weights(policy, model)
        checks.check_size(model, held, self._limit, form)
        checks.check_vocabulary(policy, model, trainer.processing_class, tokenizer, equal_rows=self._distils)
        if form in ("8 bits", "4 bits"):
            quantization.quantize(model, 8 if form == "8 bits" else 4, trainer.accelerator.device)
        if not self._distils:
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(
                model, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
            )
        ready = place(model, trainer.accelerator, form, self._offload_folder, head_stays=self._distils)
        checks.check_scores(trainer, ready)
        memory.return_freed()
        return ready
