"""Named teachers, which are all loaded when added, so that a swap is a mere assignment. The module also finds a
policy's reference model."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from accelerate.utils import is_peft_model

from oven_core.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_learner.teachers import checks, memory
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form
from oven_learner.teachers.placement import as_trainer_asks, chosen_form, load_model, load_tokenizer, place_model

log = logging.getLogger("oven.learner")

LIMIT_BYTES = 16 * 1024**3
"""Size limit for all teachers together, because all of them stay loaded."""

Model = TypeVar("Model")


def has_adapter(trainer: Any) -> bool:
    """Whether the policy is a PEFT model. The model below its adapter is then always available as a reference."""
    return bool(is_peft_model(trainer.model))


def has_reference(trainer: Any) -> bool:
    """Whether a GRPOTrainer has a reference model, regardless of its β."""
    return trainer.ref_model is not None or has_adapter(trainer)


@contextmanager
def reference(trainer: Any) -> Iterator[Any]:
    """Provide the reference model for scoring, selected as in TRL 1.16 (`_generate_and_score_completions`)."""
    with teaching(trainer, trainer.ref_model) as model:
        yield model


@contextmanager
def teaching(trainer: Any, model: Any) -> Iterator[Any]:
    """Provide a teacher's model for scoring. None means the policy without its adapter."""
    if model is not None:
        yield model
        return
    from trl.trainer.utils import use_adapter

    policy = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None):
        yield policy


@dataclass(frozen=True)
class Candidate(Generic[Model]):
    """A teacher that is loaded, frozen and placed in memory, but not yet added to a trainer."""

    name: str
    model: Model
    form: Form
    config: TeacherConfig


class NamedTeachers(ABC, Generic[Model]):
    """A registry of teachers in the order of addition, weakest first. All stay loaded, so that a swap is an assignment.

    Subclasses define how to load a teacher (`_prepare`), how the trainer tests it (`_admit`), and which one is active.
    """

    def __init__(self, limit_bytes: int, offload_folder: Path | str | None) -> None:
        self._limit = limit_bytes
        self._offload_folder = Path(offload_folder) if offload_folder is not None else None
        self._models: dict[str, Model] = {}
        self._forms: dict[str, Form] = {}
        self._refused: dict[str, str] = {}
        self._order: list[str] = []
        self._naming = threading.Lock()
        self.added: Callable[[], object] = lambda: None
        """Called after each addition, so that an attached trainer offers the new teacher as a choice."""

    def add(self, name: str, teacher: Any, tokenizer: Any = None) -> None:
        """Check a model or a TeacherConfig's teacher, freeze it, and make it available for swaps.

        During training, call it between two steps and on all ranks. `tokenizer` allows a comparison of the token ids.
        Raises TeacherRefusedError if it cannot teach this policy; later requests for the name fail with the same
        reason. Raises ConfigError if the name is taken, or an extra is missing.
        """
        self.admit(self.prepare(name, teacher, tokenizer))

    def register(self, config: TeacherConfig) -> None:
        """Add the teacher that `config` describes, and place it in memory by its strategy."""
        self.add(config.name, config)

    def prepare(
        self, name: str, teacher: Any, tokenizer: Any = None, *, beside_training: bool = False
    ) -> Candidate[Model]:
        """Load the teacher and convert it to its form, which is the first and slower half of `add`. With
        `beside_training`, another thread may run a step, which is not affected."""
        if not name:
            raise ConfigError("a teacher needs a name")
        self._check_new(name)
        config = teacher
        if not isinstance(config, TeacherConfig):
            config = TeacherConfig(name=name, model=teacher, tokenizer=tokenizer)
        try:
            model, form = self._prepare(config, beside_training)
            return Candidate(name, model, form, config)
        except TeacherRefusedError as error:
            self._name(name)
            raise self._refuse(name, error) from error

    def admit(self, candidate: Candidate[Model]) -> None:
        """Test the teacher with the trainer and make it available, which is the second half of `add`. Call it between
        steps."""
        name = candidate.name
        self._name(name)
        try:
            self._models[name] = self._admit(candidate)
        except TeacherRefusedError as error:
            raise self._refuse(name, error) from error
        except BaseException:
            self._order.remove(name)  # the outcome is unknown, so the name is free again
            raise
        self._forms[name] = candidate.form
        held = memory.own_bytes(candidate.model)  # type: ignore[arg-type]
        log.info("teacher %r is kept as %r and uses %s bytes", name, candidate.form, f"{held:,}")
        self.added()

    def strategy(self, name: str) -> Form:
        """Return the teacher's form in memory: "resident", "8 bits", "4 bits" or "offload". Raises the same errors as
        `teachers[name]`."""
        self[name]
        return self._forms.get(name, "resident")

    @property
    def names(self) -> tuple[str, ...]:
        """All names, weakest first, including refused teachers."""
        return tuple(self._order)

    @property
    def refused(self) -> Mapping[str, str]:
        """The reason for each refused teacher, by name."""
        return MappingProxyType(self._refused)

    @property
    @abstractmethod
    def active(self) -> str:
        """Name of the active teacher."""

    @abstractmethod
    def swap(self, name: str) -> None:
        """Make `name` the active teacher. Raises the same errors as `teachers[name]`."""

    def __len__(self) -> int:
        """Number of loaded teachers."""
        return len(self._models)

    def __getitem__(self, name: str) -> Model:
        """Return the model. Raises UnknownNameError, or TeacherRefusedError with the reason."""
        if name in self._refused:
            raise TeacherRefusedError(self._refused[name])
        if name not in self._models:
            raise UnknownNameError("teacher", name, self._models)
        return self._models[name]

    @abstractmethod
    def _prepare(self, config: TeacherConfig, beside_training: bool) -> tuple[Model, Form]:
        """Load a teacher and convert it to its form, without changing the trainer."""

    @abstractmethod
    def _admit(self, candidate: Candidate[Model]) -> Model:
        """Score a probe, and return the model in the trainer's form."""

    @property
    def _held(self) -> int:
        """Bytes of the loaded teachers."""
        loaded: Iterable[Any] = self._models.values()
        return sum(memory.own_bytes(model, buffers=False) for model in loaded if model is not None)

    def _name(self, name: str) -> None:
        with self._naming:  # two threads may have prepared the same teacher
            self._check_new(name)
            self._order.append(name)

    def _check_new(self, name: str) -> None:
        if name in self._order:
            raise ConfigError(f"a teacher named {name!r} already exists")

    def _refuse(self, name: str, error: TeacherRefusedError) -> TeacherRefusedError:
        self._refused[name] = f"teacher {name!r} is refused: {error}"
        return TeacherRefusedError(self._refused[name])


class Teachers(NamedTeachers[Any]):
    """The teachers of a TRL trainer's policy.

    They replace a GRPOTrainer's reference model, or a DistillationTrainer's `teacher_model`. The trainer's original
    model comes first, with the name `own`. With PEFT that is the policy without its adapter, unless the trainer has
    another model. A GRPOTrainer with beta 0 has none: add some, `swap` to the first, and set `trainer.beta`. The policy
    then need not be on disk, from where TRL would load its reference.

    An attached GRPOTrainer publishes `kl/<teacher>` for inactive teachers every `kl_every` steps; 0 means never.
    `offload_folder` is for teachers on disk. None means the system's folder for temporary files, which is in memory on
    some systems.

    Raises ConfigError under FSDP and DeepSpeed, for `sync_ref_model`, and for a negative `kl_every`.
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
        """The models of loaded but inactive teachers, by name. None is the policy without its adapter."""
        return {name: model for name, model in self._models.items() if model is not self._present}

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

        A GRPOTrainer may have buffered completions (steps_per_generation or num_iterations above 1), with
        log-probabilities of the old teacher. They are dropped, and the next step generates again from the same prompts.
        Raises UnknownNameError, or TeacherRefusedError with the reason.
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

    def _prepare(self, config: TeacherConfig, beside_training: bool) -> tuple[Any, Form]:
        trainer, device, held = self._trainer, self._trainer.accelerator.device, self._held
        form = chosen_form(config, device, self._limit - held)
        tokenizer = load_tokenizer(config)
        teacher = load_model(config, form, device, beside_training=beside_training)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        checks.check_own_weights(policy, teacher)
        checks.check_size(teacher, held, self._limit, form)
        checks.check_vocabulary(policy, teacher, trainer.processing_class, tokenizer, equal_rows=self._distils)
        if not self._distils:
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(
                teacher, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
            )
        place_model(teacher, device, form, self._offload_folder, head_stays=self._distils)
        return teacher, form

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
        return ready
