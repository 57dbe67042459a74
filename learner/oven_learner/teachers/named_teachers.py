"""Teachers by name, of whichever trainer: those that were admitted, and those that were refused, with the reason."""

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
"""Of all teachers together, since all stay loaded."""

Model = TypeVar("Model")


@dataclass(frozen=True)
class Candidate(Generic[Model]):
    """A teacher that is loaded, frozen and in its form, and that no trainer knows yet."""

    name: str
    model: Model
    form: Form = "resident"
    config: TeacherConfig | None = None


class NamedTeachers(ABC, Generic[Model]):
    """Weakest first: in the order in which they were added. All stay loaded, so that a swap is an assignment.

    A subclass says how one is made ready (`_prepare`), what the trainer has to see of it (`_admit`), and which is
    active.
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
        """Called after each that was added: what is attached offers it then. To add one is not to choose it."""

    def add(self, name: str, teacher: Any, tokenizer: Any = None) -> None:
        """Check a model, or what a TeacherConfig describes, freeze it, and have it ready to be swapped to. In a running
        training, between two steps and on all ranks, it becomes a choice of `teacher.active` at the next step.

        Raises TeacherRefusedError where it cannot teach this policy: the name is then known with the reason, and asking
        for it later is turned down with that. ConfigError where the name is taken, or an extra is missing. `tokenizer`
        lets the token ids themselves be compared.
        """
        self.admit(self.prepare(name, teacher, tokenizer))

    def register(self, config: TeacherConfig) -> None:
        """`add` what `config` describes, kept in memory as its strategy says."""
        self.add(config.name, config)

    def prepare(
        self, name: str, teacher: Any, tokenizer: Any = None, *, beside_training: bool = False
    ) -> Candidate[Model]:
        """The first and longer half of `add`: load it and put it into its form. `beside_training`: a step may run in
        another thread meanwhile, and is not changed by it. Raises as `add` does."""
        if not name or name in self._order:
            raise _taken(name)
        try:
            return self._prepare(name, teacher, tokenizer, beside_training)
        except TeacherRefusedError as error:
            self._name(name)
            raise self._refuse(name, error) from error

    def admit(self, candidate: Candidate[Model]) -> None:
        """The second half, between two steps: try it with the trainer, and have it by its name. Raises as `add`
        does."""
        name, config = candidate.name, candidate.config
        with self._named(name):
            self._models[name] = self._admit(candidate)
        self._forms[name] = candidate.form
        if config is not None:
            held = memory.own_bytes(candidate.model)  # type: ignore[arg-type]
            log.info("teacher %r is kept as %r, and holds %s bytes", name, candidate.form, f"{held:,}")
        self.added()

    def strategy(self, name: str) -> Form:
        """How that teacher is kept: "resident", "8 bits", "4 bits" or "offload". Raises as `teachers[name]` does."""
        self[name]
        return self._forms.get(name, "resident")

    @property
    def names(self) -> tuple[str, ...]:
        """Weakest first; those that were refused keep their place."""
        return tuple(self._order)

    @property
    def refused(self) -> Mapping[str, str]:
        """Name → why."""
        return MappingProxyType(self._refused)

    @property
    @abstractmethod
    def active(self) -> str:
        """Name of the one that teaches now."""

    @abstractmethod
    def swap(self, name: str) -> None:
        """Make `name` the active one. Raises as `teachers[name]` does."""

    def __len__(self) -> int:
        """How many are loaded."""
        return len(self._models)

    def __getitem__(self, name: str) -> Model:
        """The model. Raises UnknownNameError, or TeacherRefusedError with the reason."""
        if name in self._refused:
            raise TeacherRefusedError(self._refused[name])
        if name not in self._models:
            raise UnknownNameError("teacher", name, self._models)
        return self._models[name]

    @abstractmethod
    def _prepare(self, name: str, teacher: Any, tokenizer: Any, beside_training: bool) -> Candidate[Model]:
        """Loaded and in its form; nothing of the trainer's may change."""

    @abstractmethod
    def _admit(self, candidate: Candidate[Model]) -> Model:
        """The model as the trainer asks it, after it has scored a probe."""

    @property
    def _held(self) -> int:
        """Bytes of those that are loaded."""
        loaded: Iterable[Any] = self._models.values()
        return sum(checks.size_bytes(one) for one in loaded if one is not None)

    def _name(self, name: str) -> None:
        with self._naming:  # two threads may have prepared the same one
            if name in self._order:
                raise _taken(name)
            self._order.append(name)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        self._name(name)
        try:
            yield
        except TeacherRefusedError as error:
            raise self._refuse(name, error) from error
        except BaseException:
            self._order.remove(name)  # nothing is known of it: not even that it does not fit
            raise

    def _refuse(self, name: str, error: TeacherRefusedError) -> TeacherRefusedError:
        self._refused[name] = f"teacher {name!r} is refused: {error}"
        return TeacherRefusedError(self._refused[name])


def _taken(name: str) -> ConfigError:
    return ConfigError(f"a teacher named {name!r} is there already" if name else "a teacher needs a name")
