"""What programs call to ask the worker: `worker` and `worker_batch`."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from oven_core.errors import ConfigError
from oven_llm.sandbox.exchange import CallError
from oven_llm.supervisor.model_calls import Answered, ModelCalls

Primitives: TypeAlias = Mapping[str, Callable[..., Any]]
"""By name; arguments and results are values of JSON. They run in the caller's process, with its rights."""
RESERVED: Final = ("context", "query", "worker", "worker_batch", "FINAL")
"""Names that programs have anyway."""


@dataclass(frozen=True)
class Primitive:
    """What the supervisor is told of one."""

    name: str
    signature: str
    about: str


def described(primitives: Primitives) -> list[Primitive]:
    """As the prompt lists them: signature and first line of the docstring."""
    found = []
    for name, function in primitives.items():
        try:
            signature = str(inspect.signature(function))
        except (TypeError, ValueError):  # a builtin that has none
            signature = "(…)"
        found.append(Primitive(name, signature, (inspect.getdoc(function) or "").partition("\n")[0]))
    return found


def check_primitives(primitives: Primitives) -> None:
    """Raises ConfigError for a name that a program cannot call."""
    for name, function in primitives.items():
        if name in RESERVED or keyword.iskeyword(name) or not name.isidentifier():
            raise ConfigError(f"{name!r} cannot be the name of a primitive; take another than {', '.join(RESERVED)}")
        if not callable(function):
            raise ConfigError(f"the primitive {name} is of type {type(function).__name__}; give a function")


Slot: TypeAlias = str | dict[str, str]
"""A worker's text, or why there is none: {"failed": reason}, so that no program takes a failure for a text."""
FAILED: Final = "failed"


class WorkerFunctions:
    """Both over one model. For the sandbox's thread."""

    def __init__(self, calls: ModelCalls, step: Callable[[], int]) -> None:
        """`step`: the supervisor's turn, for the log."""
        self._calls, self._step = calls, step

    def worker(self, *given: Any, **named: Any) -> str:
        """The worker's answer to one prompt. Raises CallError, which fails in the program."""
        prompt = _only("worker", "prompt", given, named)
        if not isinstance(prompt, str):
            raise CallError(f"worker(prompt) takes a text, not {_kind(prompt)}; for several there is worker_batch")
        answered = self._calls.ask(self._step(), [prompt])[0]
        if not isinstance(answered, str):
            raise CallError(f"the worker failed: {answered}")
        return answered

    def worker_batch(self, *given: Any, **named: Any) -> list[Slot]:
        """Its answers to all prompts, in their order. Raises CallError for what is not a list of texts."""
        prompts = _only("worker_batch", "prompts", given, named)
        if not isinstance(prompts, list):
            raise CallError(f"worker_batch(prompts) takes a list of texts, not {_kind(prompts)}")
        for at, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise CallError(f"worker_batch(prompts) takes a list of texts; item {at} is {_kind(prompt)}")
        return [_slot(answered) for answered in self._calls.ask(self._step(), prompts)]


def _slot(answered: Answered) -> Slot:
    return answered if isinstance(answered, str) else {FAILED: str(answered)}


def _only(function: str, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The one argument, by its place or its name. Raises CallError."""
    if len(given) == 1 and not named:
        return given[0]
    if not given and list(named) == [name]:
        return named[name]
    raise CallError(f"{function}({name}) takes one argument; it got {len(given) + len(named)}")


def _kind(value: object) -> str:
    names = {"NoneType": "None", "dict": "a dict", "list": "a list", "str": "a text"}
    return names.get(type(value).__name__, f"a value of type {type(value).__name__}")
