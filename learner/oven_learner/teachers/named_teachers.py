"""The base class of teachers by name: the admitted ones, and the refused ones with their reasons."""

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

from oven_core.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_learner.teachers import checks, memory
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.memory import Form

log = logging.getLogger("oven.learner")

LIMIT_BYTES = 16 * 1024**3
"""Limit for all teachers together, because all stay loaded."""

Model = TypeVar("Model")


@dataclass(frozen=True)
class Candidate(Generic[Model]):
    """A loaded and frozen teacher in its form, before a trainer knows it."""

    name: str
    model: Model
    form: Form = "resident"
    config: TeacherConfig | None = None


class NamedTeachers(ABC, Generic[Model]):
    """Teachers in the order of addition, weakest first. All stay loaded, so that a swap is an assignment.

    Subclasses define how a teacher is loaded (`_prepare`), how the trainer tests it (`_admit`), and which is active.
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
        """Called after each addition, so that an attached trainer offers the teacher. It is not chosen."""

    def add(self, name: str, teacher: Any, tokenizer: Any = None) -> None:
        """Check a model or the teacher of a TeacherConfig, freeze it, and make it available for swaps.

        In a running training, call it between two steps and on all ranks. The teacher becomes a choice of
        `teacher.active` at the next step. Raises TeacherRefusedError if it cannot teach this policy. The reason is
        kept, and later requests for the name fail with it. Raises ConfigError if the name is taken, or an extra is
        missing. `tokenizer` allows a comparison of the token ids.
        """
        self.admit(self.prepare(name, teacher, tokenizer))

    def register(self, config: TeacherConfig) -> None:
        """Add the teacher of `config`, kept in memory by its strategy."""
        self.add(config.name, config)

    def prepare(
        self, name: str, teacher: Any, tokenizer: Any = None, *, beside_training: bool = False
    ) -> Candidate[Model]:
        """Load the teacher and put it into its form: the first and longer half of `add`.

        With `beside_training`, a step may run in another thread and is not affected. Raises the same errors as `add`.
        """
        if not name or name in self._order:
            raise _name_error(name)
        try:
            return self._prepare(name, teacher, tokenizer, beside_training)
        except TeacherRefusedError as error:
            self._name(name)
            raise self._refuse(name, error) from error

    def admit(self, candidate: Candidate[Model]) -> None:
        """Test the teacher with the trainer and make it available: the second half of `add`, between two steps.

        Raises the same errors as `add`.
        """
        name, config = candidate.name, candidate.config
        with self._named(name):
            self._models[name] = self._admit(candidate)
        self._forms[name] = candidate.form
        if config is not None:
            held = memory.own_bytes(candidate.model)  # type: ignore[arg-type]
            log.info("teacher %r is kept as %r and uses %s bytes", name, candidate.form, f"{held:,}")
        self.added()

    def strategy(self, name: str) -> Form:
        """Return how the teacher is kept: "resident", "8 bits", "4 bits" or "offload". Raises the same errors as
        `teachers[name]`."""
        self[name]
        return self._forms.get(name, "resident")

    @property
    def names(self) -> tuple[str, ...]:
        """Names, weakest first, including refused teachers."""
        return tuple(self._order)

    @property
    def refused(self) -> Mapping[str, str]:
        """Name → reason."""
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
    def _prepare(self, name: str, teacher: Any, tokenizer: Any, beside_training: bool) -> Candidate[Model]:
        """Load a teacher and put it into its form, without changing the trainer."""

    @abstractmethod
    def _admit(self, candidate: Candidate[Model]) -> Model:
        """Score a probe, and return the model in the trainer's form."""

    @property
    def _held(self) -> int:
        """Bytes of the loaded teachers."""
        loaded: Iterable[Any] = self._models.values()
        return sum(checks.size_bytes(model) for model in loaded if model is not None)

    def _name(self, name: str) -> None:
        with self._naming:  # two threads may have prepared the same teacher
            if name in self._order:
                raise _name_error(name)
            self._order.append(name)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        self._name(name)
        try:
            yield
        except TeacherRefusedError as error:
            raise self._refuse(name, error) from error
        except BaseException:
            self._order.remove(name)  # the outcome is unknown, so the name is free again
            raise

    def _refuse(self, name: str, error: TeacherRefusedError) -> TeacherRefusedError:
        self._refused[name] = f"teacher {name!r} is refused: {error}"
        return TeacherRefusedError(self._refused[name])


def _name_error(name: str) -> ConfigError:
    return ConfigError(f"a teacher named {name!r} already exists" if name else "a teacher needs a name")
