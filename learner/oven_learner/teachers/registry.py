"""A registry of named teachers. All of them stay loaded, so that a swap is only an assignment."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from oven_core.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_learner import trainer_internals
from oven_learner.teachers import memory_forms, teacher_checks
from oven_learner.teachers.memory_forms import Form
from oven_learner.teachers.placement import choose_form, load_model, load_tokenizer, place_model, prepare_for_trainer
from oven_learner.teachers.reference_model import has_adapter
from oven_learner.teachers.teacher_config import TeacherConfig

log = logging.getLogger("oven.learner")

LIMIT_BYTES = 16 * 1024**3
"""Maximum bytes of all teachers together, because all of them stay loaded."""
Model = TypeVar("Model")


@dataclass(frozen=True)
class Candidate(Generic[Model]):
    """A teacher that is loaded, frozen and placed in memory, but not yet added to a trainer."""

    name: str
    model: Model
    form: Form
    config: TeacherConfig


class NamedTeachers(ABC, Generic[Model]):
    """A registry of teachers in the order in which they were added, which should be from weak to strong. Subclasses
    define how to load a teacher (`_prepare`), how the trainer tests it (`_admit`), and which one is active."""

    def __init__(self, limit_bytes: int, offload_folder: Path | str | None) -> None:
        self._limit = limit_bytes
        self._offload_folder = Path(offload_folder) if offload_folder is not None else None
        self._models: dict[str, Model] = {}
        self._forms: dict[str, Form] = {}
        self._refused: dict[str, str] = {}
        self._order: list[str] = []
        self._name_lock = threading.Lock()
        self.on_add: Callable[[], object] = lambda: None
        """Called after a teacher has been added. An attached trainer then offers it as a choice."""

    def add(self, name: str, teacher: Any, tokenizer: Any = None) -> None:
        """Check a teacher, given as a model or a TeacherConfig, freeze it, and make it available for swaps. During
        training, call this between two steps and on all ranks. If `tokenizer` is passed, its token ids are compared
        with the policy's. Raises TeacherRefusedError if the teacher does not suit this policy. Later requests for its
        name then raise the same error. Raises ConfigError if the name is taken, or a package is missing."""
        self.admit(self.prepare(name, teacher, tokenizer))

    def register(self, config: TeacherConfig) -> None:
        """Add the teacher that `config` describes, and place it in memory according to its strategy."""
        self.add(config.name, config)

    def prepare(
        self, name: str, teacher: Any, tokenizer: Any = None, *, during_training: bool = False
    ) -> Candidate[Model]:
        """Load the teacher and convert it to its form in memory. This is the first and slower half of `add`. Pass
        `during_training=True` if another thread may be training, so that loading does not disturb a training step."""
        if not name:
            raise ConfigError("the teacher's name is empty; every teacher needs a name")
        self._check_unused(name)
        config = teacher
        if not isinstance(config, TeacherConfig):
            config = TeacherConfig(name=name, model=teacher, tokenizer=tokenizer)
        try:
            model, form = self._prepare(config, during_training)
            return Candidate(name, model, form, config)
        except TeacherRefusedError as error:
            self._reserve_name(name)
            raise self._refuse(name, error) from error

    def admit(self, candidate: Candidate[Model]) -> None:
        """Test the teacher with the trainer and make it available. It is the second half of `add`. Call it between
        steps."""
        name = candidate.name
        self._reserve_name(name)
        try:
            self._models[name] = self._admit(candidate)
        except TeacherRefusedError as error:
            raise self._refuse(name, error) from error
        except BaseException:
            self._order.remove(name)  # the test did not finish, so the name can be used again
            raise
        self._forms[name] = candidate.form
        size = memory_forms.memory_bytes(candidate.model)  # type: ignore[arg-type]
        log.info("teacher %r is stored as %r and uses %s bytes", name, candidate.form, f"{size:,}")
        self.on_add()

    def memory_form(self, name: str) -> Form:
        """Return the teacher's form in memory. Raises the same errors as `teachers[name]`."""
        self[name]  # raises for an unknown or a refused name
        return self._forms.get(name, "resident")

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order they were added, including refused teachers."""
        return tuple(self._order)

    @property
    def refused(self) -> Mapping[str, str]:
        """The reasons for refusals, by the teacher's name."""
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
        """Return the model. Raises UnknownNameError for an unknown name, and TeacherRefusedError for a refused one."""
        if name in self._refused:
            raise TeacherRefusedError(self._refused[name])
        if name not in self._models:
            raise UnknownNameError("teacher", name, self._models)
        return self._models[name]

    @abstractmethod
    def _prepare(self, config: TeacherConfig, during_training: bool) -> tuple[Model, Form]:
        """Load a teacher and convert it to its form in memory, without changing the trainer."""

    @abstractmethod
    def _admit(self, candidate: Candidate[Model]) -> Model:
        """Test the teacher on a short input, and return the model prepared for the trainer."""

    @property
    def _loaded_bytes(self) -> int:
        """Bytes of the loaded teachers."""
        loaded_models: Iterable[Any] = self._models.values()
        return sum(memory_forms.memory_bytes(model, buffers=False) for model in loaded_models if model is not None)

    def _reserve_name(self, name: str) -> None:
        with self._name_lock:  # two threads may have prepared the same teacher
            self._check_unused(name)
            self._order.append(name)

    def _check_unused(self, name: str) -> None:
        if name in self._order:
            raise ConfigError(f"a teacher named {name!r} already exists; choose another name")

    def _refuse(self, name: str, error: TeacherRefusedError) -> TeacherRefusedError:
        """Store the reason for the refusal, and return the error to raise."""
        self._refused[name] = f"teacher {name!r} is refused: {error}"
        return TeacherRefusedError(self._refused[name])


class Teachers(NamedTeachers[Any]):
    """The teachers of a TRL trainer's policy. The active one replaces a GRPOTrainer's reference model, or a
    DistillationTrainer's `teacher_model`.

    The trainer's own model is the first teacher, named `initial_name`. With PEFT it is the policy without its adapter,
    unless the trainer holds a separate reference model. A GRPOTrainer with a beta of 0 has no such model. In that case,
    add teachers, `swap` to the first, and set `trainer.beta`. TRL then never loads a reference model from disk.

    An attached GRPOTrainer publishes `kl/<teacher>` for inactive teachers every `kl_every` steps, or never if it is 0.
    `offload_folder` stores offloaded teachers. By default it is the system's temp directory, which may be a RAM disk.
    Raises ConfigError under FSDP and DeepSpeed, for `sync_ref_model`, and for a negative `kl_every`."""

    def __init__(
        self,
        trainer: Any,
        *,
        limit_bytes: int = LIMIT_BYTES,
        initial_name: str = "initial",
        kl_every: int = 25,
        offload_folder: Path | str | None = None,
    ) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError("teachers cannot be swapped under FSDP or DeepSpeed; train with DDP or in one process")
        if getattr(trainer.args, "sync_ref_model", False):
            raise ConfigError("sync_ref_model changes the reference model itself; turn it off to swap teachers")
        if kl_every < 0:
            raise ConfigError(f"kl_every={kl_every} is invalid; expected a number of steps, or 0 for never")
        super().__init__(limit_bytes, offload_folder)
        self.kl_every = kl_every
        self._trainer = trainer
        self._is_distillation = hasattr(trainer, "teacher_model")
        if self._current_model is not None or (has_adapter(trainer) and not self._is_distillation):
            self._models[initial_name] = self._current_model  # TRL's None means the policy without its adapter
            self._order.append(initial_name)

    @property
    def idle_models(self) -> Mapping[str, Any]:
        """Models of the loaded but inactive teachers, by name. None means the policy without its adapter."""
        return {name: model for name, model in self._models.items() if model is not self._current_model}

    @property
    def active(self) -> str:
        """Name of the trainer's current teacher. Raises ConfigError if it is not in the registry."""
        for name, model in self._models.items():
            if model is self._current_model:
                return name
        raise ConfigError(
            f"the trainer's teacher is not in the registry ({', '.join(self._models) or 'empty'}); call swap(name)"
        )

    def swap(self, name: str) -> None:
        """Make `name` the teacher, starting with the next optimizer step. Call it between two steps. Completions that a
        GRPOTrainer has buffered (steps_per_generation or num_iterations above 1) have the old teacher's
        log-probabilities. So they are dropped, and the next step generates them again. Raises the same errors as
        `teachers[name]`."""
        model = self[name]
        if model is self._current_model:
            return
        if self._is_distillation:
            self._trainer.teacher_model = model
            return
        self._trainer.ref_model = model
        trainer_internals.drop_buffer(self._trainer)

    @property
    def _current_model(self) -> Any:
        return self._trainer.teacher_model if self._is_distillation else self._trainer.ref_model

    def _prepare(self, config: TeacherConfig, during_training: bool) -> tuple[Any, Form]:
        trainer, device, loaded_bytes = self._trainer, self._trainer.accelerator.device, self._loaded_bytes
        form = choose_form(config, device, self._limit - loaded_bytes)
        tokenizer = load_tokenizer(config)
        teacher = load_model(config, form, device, during_training=during_training)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        teacher_checks.check_own_weights(policy, teacher)
        teacher_checks.check_size(teacher, loaded_bytes, self._limit, form)
        teacher_checks.check_vocabulary(
            policy, teacher, trainer.processing_class, tokenizer, equal_rows=self._is_distillation
        )
        if not self._is_distillation:
            trainer_internals.fuse_head(trainer, teacher)
        place_model(teacher, device, form, self._offload_folder, keep_head=self._is_distillation)
        return teacher, form

    def _admit(self, candidate: Candidate[Any]) -> Any:
        accelerator = self._trainer.accelerator
        # Check again, because another teacher may have been added in the meantime.
        teacher_checks.check_size(candidate.model, self._loaded_bytes, self._limit, candidate.form)
        try:
            model = prepare_for_trainer(candidate.model, accelerator, candidate.form)
            teacher_checks.check_scores(self._trainer, model)
        except Exception:
            trainer_internals.forget_model(accelerator, candidate.model)
            raise
        return model
