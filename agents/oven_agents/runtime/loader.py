"""Finding an agent: by the name of an entry point in `oven.agents`, or in a Python file of the user's."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from oven_agents.sdk.agent import Agent
from oven_core import plugins
from oven_core.errors import ConfigError, OvenError, UnknownNameError
from oven_core.protocol.events import Event
from oven_runs.settings.agent_options import checked


def load(name_or_file: str, options: Mapping[str, Any] | None = None, called: str = "") -> tuple[str, Agent]:
    """(default name, agent), with `options` set before it is made. `called`: its name in errors, if it has another.
    Raises UnknownNameError, or ConfigError naming the file and line that went wrong."""
    made, wrong = kind(name_or_file)
    name = default_name(name_or_file)
    try:
        return name, _made(called or name, made, options or {})
    except OvenError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{wrong} {_raised(error)}") from error


def repeatable_agents() -> list[str]:
    """The installed agents whose votes follow from a log, in the order of their names. Raises as `load`."""
    return [name for name in sorted(plugins.points("agents")) if not getattr(kind(name)[0], "unrepeatable", "")]


def load_repeatable(name_or_file: str) -> tuple[str, Agent]:
    """As `load`, for a replay of a log. Raises ConfigError for an agent whose votes cannot be made again from one."""
    name, agent = load(name_or_file)
    if agent.unrepeatable:
        raise ConfigError(f"the agent {name!r} {agent.unrepeatable}")
    return name, agent


@runtime_checkable
class Recalling(Protocol):
    """An agent that keeps what it was told in the run's folder, so that its votes can be made again from there."""

    def recall(self, folder: Path, events: Sequence[Event], config: Mapping[str, Any]) -> None:
        """`events`: the run's log, judged; `config`: its resolved settings. Raises ConfigError where nothing is
        kept."""


def default_name(name_or_file: str) -> str:
    return Path(name_or_file).stem if name_or_file.endswith(".py") else name_or_file


def kind(name_or_file: str) -> tuple[Callable[[], Agent], str]:
    """What makes the agent, in nearly all cases its class, and how a sentence begins that says that it raised. Raises
    as `load`."""
    if name_or_file.endswith(".py"):
        path = Path(name_or_file)
        found = _in_file(path)
        return found, f"{path}: {found.__name__}()"
    points = plugins.points("agents")
    if name_or_file not in points:
        raise UnknownNameError("agent", name_or_file, points)
    wrong = f"the agent {name_or_file!r} ({points[name_or_file].value}) cannot be loaded: it"
    try:
        return points[name_or_file].load(), wrong
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{wrong} {_raised(error)}") from error


def _made(name: str, made: Callable[[], Agent], options: Mapping[str, Any]) -> Agent:
    if not options:
        return made()
    if not inspect.isclass(made):
        raise ConfigError(f"agent {name!r} has no options: its entry point is not a class")
    values = checked(name, made, options)
    shown = ", ".join(f"{attribute.lower()}={value!r}" for attribute, value in values.items())
    body: dict[str, Any] = {name: getattr(made, name) for name in ("__doc__", "__module__", "__qualname__")}
    body.update(values, version=f"{getattr(made, 'version', '')} ({shown})")
    agent: Agent = type(made.__name__, (made,), body)()
    for attribute, value in values.items():
        if getattr(agent, attribute) != value:
            raise ConfigError(f"agent {name!r} sets {attribute} when it is made, so that it cannot be an option")
    return agent


def _in_file(path: Path) -> type[Agent]:
    if not path.is_file():
        raise ConfigError(f"there is no agent file {path}; `oven-controller agent new NAME` writes one to start from")
    spec = importlib.util.spec_from_file_location(f"oven_user_agent_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
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
    return classes[0]


def _raised(error: BaseException) -> str:
    """As the agent's author knows it from Python."""
    if isinstance(error, SystemExit):
        return f'called sys.exit({error.code!r}); what only a script does belongs under `if __name__ == "__main__":`'
    return f"raised {type(error).__name__}: {error}"
