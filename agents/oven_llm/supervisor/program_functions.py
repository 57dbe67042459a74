"""The functions that programs can call: `worker` and `worker_batch`, and the caller's own, called primitives."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from oven_core.errors import ConfigError
from oven_llm.sandbox.exchange import CallError
from oven_llm.supervisor.model_calls import CallOutcome, ModelCalls

Primitives: TypeAlias = Mapping[str, Callable[..., Any]]
"""The caller's functions by name. Arguments and results are JSON values. They run in the caller's process, with its
rights."""
RESERVED: Final = ("context", "query", "worker", "worker_batch", "FINAL")
"""Names that programs always have."""
Slot: TypeAlias = str | dict[str, str]
"""A worker's text, or the reason why there is none: {"failed": reason}. So no program mistakes a failure for a text."""
FAILED: Final = "failed"


@dataclass(frozen=True)
class Primitive:
    """A primitive's description for the supervisor."""

    name: str
    signature: str
    about: str


def described(primitives: Primitives) -> list[Primitive]:
    """Return the primitives as the prompt lists them: signature and first line of the docstring."""
    descriptions = []
    for name, function in primitives.items():
        try:
            signature = str(inspect.signature(function))
        except (TypeError, ValueError):  # a builtin without one
            signature = "(…)"
        descriptions.append(Primitive(name, signature, (inspect.getdoc(function) or "").partition("\n")[0]))
    return descriptions


def check_primitives(primitives: Primitives) -> None:
    """Raise ConfigError for a name that a program cannot call, and for a value that is not a function."""
    for name, function in primitives.items():
        if name in RESERVED or keyword.iskeyword(name) or not name.isidentifier():
            raise ConfigError(f"{name!r} cannot be the name of a primitive; {', '.join(RESERVED)} are reserved")
        if not callable(function):
            raise ConfigError(f"the primitive {name} is of type {type(function).__name__}; give a function")


class WorkerFunctions:
    """`worker` and `worker_batch` over one model, for the sandbox's thread."""

    def __init__(self, calls: ModelCalls, step: Callable[[], int]) -> None:
        """`step` returns the supervisor's turn, for the log."""
        self._calls, self._step = calls, step

    def worker(self, *args: Any, **kwargs: Any) -> str:
        """Return the worker's answer to one prompt. Raises CallError, which fails in the program."""
        prompt = _only_argument("worker", "prompt", args, kwargs)
        if not isinstance(prompt, str):
            raise CallError(
                f"worker(prompt) takes a text, not {_type_name(prompt)}; use worker_batch for several prompts"
            )
        outcome = self._calls.ask(self._step(), [prompt])[0]
        if not isinstance(outcome, str):
            raise CallError(f"the worker failed: {outcome}")
        return outcome

    def worker_batch(self, *args: Any, **kwargs: Any) -> list[Slot]:
        """Return the worker's answers to all prompts, in order. Raises CallError if they are not a list of texts."""
        prompts = _only_argument("worker_batch", "prompts", args, kwargs)
        if not isinstance(prompts, list):
            raise CallError(f"worker_batch(prompts) takes a list of texts, not {_type_name(prompts)}")
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise CallError(f"worker_batch(prompts) takes a list of texts; item {index} is {_type_name(prompt)}")
        return [_slot(outcome) for outcome in self._calls.ask(self._step(), prompts)]


def _slot(outcome: CallOutcome) -> Slot:
    return outcome if isinstance(outcome, str) else {FAILED: str(outcome)}


def _only_argument(function: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the only argument, given by position or name. Raises CallError."""
    if len(args) == 1 and not kwargs:
        return args[0]
    if not args and list(kwargs) == [name]:
        return kwargs[name]
    raise CallError(f"{function}({name}) takes one argument; it got {len(args) + len(kwargs)}")


def _type_name(value: object) -> str:
    names = {"NoneType": "None", "dict": "a dict", "list": "a list", "str": "a text"}
    return names.get(type(value).__name__, f"a value of type {type(value).__name__}")
