"""Runs at the start of every Python process of a script that `oven-controller run` starts, on every rank.

Python runs only the first `sitecustomize` on its path, so this one also runs the one that it hides.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden_sitecustomize() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install_hooks() -> None:
    try:
        from oven_learner.integrations.launched import install
    except ImportError as error:
        if not os.environ.get("OVEN_HOOKS_FAILED"):
            os.environ["OVEN_HOOKS_FAILED"] = "1"  # one line is enough, also for child processes
            print(f"oven: {sys.executable} cannot import oven_learner ({error}); nothing is watched", file=sys.stderr)
        return
    install()


try:
    _run_hidden_sitecustomize()
finally:
    _install_hooks()
