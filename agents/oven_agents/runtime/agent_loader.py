"""Loads an agent by its entry point name in `oven.agents`, or from a Python file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oven_agents.sdk.agent import Agent
from oven_core import plugins
from oven_core.errors import ConfigError, OvenError, UnknownNameError
from oven_runs.settings.agent_options import checked_options


def load(name_or_file: str, options: Mapping[str, Any] | None = None, alias: str = "") -> tuple[str, Agent]:
    """Create an agent with `options`, and return its default name and the agent. `alias` replaces the name in error
    messages. Raises UnknownNameError, and ConfigError with the file and line of the problem."""
    factory, error_prefix = find_factory(name_or_file)
    name = default_name(name_or_file)
    try:
        return name, _create(alias or name, factory, options or {})
    except OvenError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{error_prefix} {_describe(error)}") from error


def repeatable_agents() -> list[str]:
    """Return the sorted names of installed agents whose votes can be recomputed from a log. Raises like `load`."""
    factories = {name: find_factory(name)[0] for name in sorted(plugins.find_plugins("agents"))}
    return [name for name, factory in factories.items() if not getattr(factory, "unrepeatable", "")]


def load_repeatable(name_or_file: str) -> tuple[str, Agent]:
    """Load an agent for replaying a log. Raises ConfigError if its votes cannot be recomputed from a log."""
    name, agent = load(name_or_file)
    if agent.unrepeatable:
        raise ConfigError(f"the agent {name!r} {agent.unrepeatable}")
    return name, agent


def default_name(name_or_file: str) -> str:
    """Return the name of an agent file without its extension, or the entry point's name unchanged."""
    return Path(name_or_file).stem if name_or_file.endswith(".py") else name_or_file


def find_factory(name_or_file: str) -> tuple[Callable[[], Agent], str]:
    """Return the agent's factory, usually its class, and the prefix of its error messages. Raises like `load`."""
    if name_or_file.endswith(".py"):
        path = Path(name_or_file)
        agent_class = _class_in_file(path)
        return agent_class, f"{path}: {agent_class.__name__}()"
    points = plugins.find_plugins("agents")
    if name_or_file not in points:
        raise UnknownNameError("agent", name_or_file, points)
    error_prefix = f"the agent {name_or_file!r} ({points[name_or_file].value}) cannot be loaded: it"
    try:
        return points[name_or_file].load(), error_prefix
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{error_prefix} {_describe(error)}") from error


def _create(name: str, factory: Callable[[], Agent], options: Mapping[str, Any]) -> Agent:
    """Create an agent. With options, it is an instance of a subclass that overrides the options' class attributes."""
    if not options:
        return factory()
    if not inspect.isclass(factory):
        raise ConfigError(f"agent {name!r} has no options: its entry point is not a class")
    values = checked_options(name, factory, options)
    version_suffix = ", ".join(f"{attribute.lower()}={value!r}" for attribute, value in values.items())
    namespace: dict[str, Any] = {key: getattr(factory, key) for key in ("__doc__", "__module__", "__qualname__")}
    namespace.update(values, version=f"{getattr(factory, 'version', '')} ({version_suffix})")
    agent: Agent = type(factory.__name__, (factory,), namespace)()
    for attribute, value in values.items():
        if getattr(agent, attribute) != value:
            raise ConfigError(f"agent {name!r} sets {attribute} in its constructor, so it cannot be an option")
    return agent


def _class_in_file(path: Path) -> type[Agent]:
    """Import a Python file, and return the only agent class that it defines."""
    if not path.is_file():
        raise ConfigError(f"there is no agent file {path}; create one with `oven-controller agent new NAME`")
    spec = importlib.util.spec_from_file_location(f"oven_user_agent_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
        frames = [frame for frame in frames if frame.filename == spec.origin]
        line = frames[-1].lineno if frames else getattr(error, "lineno", "?")
        raise ConfigError(f"{path}, line {line}: importing the agent {_describe(error)}") from error
    own_classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == spec.name]
    classes = [c for c in own_classes if issubclass(c, Agent)]
    if len(classes) != 1:
        defined = ", ".join(c.__name__ for c in classes) or "none"
        raise ConfigError(f"{path} must define exactly one subclass of oven_agents.Agent; it defines {defined}")
    return classes[0]


def _describe(error: BaseException) -> str:
    """Return the end of a sentence about an agent that raised this exception."""
    if isinstance(error, SystemExit):
        return f'called sys.exit({error.code!r}); move code for scripts under `if __name__ == "__main__":`'
    return f"raised {type(error).__name__}: {error}"
