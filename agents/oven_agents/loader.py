"""Finding an agent: by the name of an entry point in `oven.agents`, or in a Python file of the user's."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path

from oven_agents.agent import Agent
from oven_controller.errors import ConfigError, UnknownNameError


def load(name_or_file: str) -> tuple[str, Agent]:
    """(default name, agent). Raises UnknownNameError, or ConfigError naming the file and line that went wrong."""
    if name_or_file.endswith(".py"):
        return _from_file(Path(name_or_file))
    found = {point.name: point for point in entry_points(group="oven.agents")}
    if name_or_file not in found:
        raise UnknownNameError("agent", name_or_file, found)
    try:
        return name_or_file, found[name_or_file].load()()
    except (Exception, SystemExit) as error:
        value = found[name_or_file].value
        raise ConfigError(f"the agent {name_or_file!r} ({value}) cannot be loaded: it {_raised(error)}") from error


def _from_file(path: Path) -> tuple[str, Agent]:
    if not path.is_file():
        raise ConfigError(f"there is no agent file {path}; `oven-controller agent new NAME` writes one to start from")
    spec = importlib.util.spec_from_file_location(f"oven_user_agent_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        frames = (
            [f for f in inspect.getinnerframes(error.__traceback__) if f.filename == spec.origin]
            if error.__traceback__
            else []
        )
        line = frames[-1].lineno if frames else getattr(error, "lineno", "?")
        raise ConfigError(f"{path}, line {line}: importing the agent {_raised(error)}") from error
    classes = [
        c
        for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, Agent) and c is not Agent and c.__module__ == spec.name
    ]
    if len(classes) != 1:
        have = ", ".join(c.__name__ for c in classes) or "none"
        raise ConfigError(f"{path} must define exactly one subclass of oven_agents.Agent; it defines {have}")
    try:
        return path.stem, classes[0]()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path}: {classes[0].__name__}() {_raised(error)}") from error


def _raised(error: BaseException) -> str:
    """As whoever wrote the agent knows it from Python."""
    if isinstance(error, SystemExit):
        return f'called sys.exit({error.code!r}); what only a script does belongs under `if __name__ == "__main__":`'
    return f"raised {type(error).__name__}: {error}"
