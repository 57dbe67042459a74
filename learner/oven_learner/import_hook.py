"""Calls functions right after a module is imported, without importing it, and keeps imports fast.

It is loaded at the start of every Python process below `oven-controller run`, so it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeAlias

AfterImport: TypeAlias = Callable[[Any], object]
"""A function that gets the imported module."""

_FILE_LOADERS = (importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader)
_functions: dict[str, list[AfterImport]] = {}


class _Finder:
    """A finder that lets the other finders find a module, and adds to its loader what has to follow."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _functions:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        # Such a loader belongs to one module. A loader of another kind may be shared, and is left alone.
        if spec is not None and isinstance(spec.loader, _FILE_LOADERS):
            _add_functions(name, spec.loader)
        return spec


_FINDER = _Finder()


def after_import(name: str, function: AfterImport) -> None:
    """Call `function(module)` right after the module is imported, or now if it already is. If it raises, the import
    succeeds, and one line on stderr says why."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _call(function, module)
        return
    _functions.setdefault(name, []).append(function)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector during imports, which free almost nothing. Next to torch and transformers, one
    full collection takes 0.3 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def report(text: str) -> None:
    """Print a line for the user on stderr. A logger that records what the script prints does not get it."""
    with contextlib.suppress(OSError):  # the user may have closed it
        os.write(2, f"oven: {text}\n".encode())


def _add_functions(name: str, loader: Any) -> None:
    exec_module = loader.exec_module

    def exec_and_call(module: ModuleType) -> None:
        exec_module(module)
        for function in _functions.pop(name, ()):
            _call(function, module)

    loader.exec_module = exec_and_call


def _call(function: AfterImport, module: ModuleType) -> None:
    try:
        function(module)
    except Exception as error:
        report(f"{module.__name__} is not watched, because of {type(error).__name__}: {error}")
