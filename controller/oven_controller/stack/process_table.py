"""A table of the stack's own processes, with the function and the optional package of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from oven_core.errors import UnknownNameError
from oven_core.plugins import import_object


@dataclass(frozen=True)
class StackProcess:
    """One of the stack's own processes."""

    function: str
    """`module:function`. The function receives the process's arguments and returns the exit code."""
    package: str = ""
    """An optional package. If it is not installed, the stack does not start this process."""


PROCESSES: Final[Mapping[str, StackProcess]] = {
    "mesh": StackProcess("oven_core.replica.replica_process:main"),
    "agent": StackProcess("oven_agents.runtime.agent_host:main"),
    "member": StackProcess("oven_llm.judges.member_process:main"),
    "probes": StackProcess("oven_llm.judges.probe_set_process:main"),
    "learner": StackProcess("oven_recipes.main:main"),
    "notify": StackProcess("oven_controller.notify.notifier_process:main"),
    "export": StackProcess("oven_controller.exporting.exporter_process:main"),
    "metrics": StackProcess("oven_controller.exporting.metrics_process:main"),
    "kg": StackProcess("oven_kg.service.service_process:main", package="networkx"),
    "monitor": StackProcess("oven_tui.main:main", package="textual"),
}


def is_installed(name: str) -> bool:
    """Return whether the package that the process needs is installed."""
    package = PROCESSES[name].package
    return not package or find_spec(package) is not None


def process_function(name: str) -> Callable[[list[str]], int]:
    """Import the function of a process. Raises UnknownNameError, and ConfigError if the import fails."""
    if name not in PROCESSES:
        raise UnknownNameError("process", name, PROCESSES)
    function: Callable[[list[str]], int] = import_object("process", name, PROCESSES[name].function)
    return function
