"""The output of `--dry-run`: the settings and the processes that would start."""

from __future__ import annotations

import asyncio

import yaml

from oven_controller.stack.line_output import start_line
from oven_controller.stack.preflight_checks import Request, check_agents, check_request, check_server
from oven_controller.stack.process_plan import make_pools
from oven_controller.stack.process_table import is_installed
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded_server import find_binary
from oven_runs.settings.agents import agent_specs, agents_per_process
from oven_runs.settings.run_settings import Settings


def output_lines(request: Request, home: Home) -> list[str]:
    """Return the lines to print: how the run would start, the settings as YAML, and the processes. Raises the errors
    that `up` would raise before the learner starts, e.g. for names, keys, agent files and the user's own server."""
    check_request(request, home)
    settings = request.resolved.settings
    if not settings.agent_options:  # otherwise `check_request` has already loaded the agents
        check_agents(settings)
    if settings.nats:
        asyncio.run(check_server(request))
    prefix = "python -m oven_controller.stack.run_process"
    processes = {"nats-server": f"not started: {settings.nats} is used" if settings.nats else find_binary()}
    for number in range(1, settings.meshes + 1):
        processes["mesh" if number == 1 else f"mesh-{number}"] = f"{prefix} mesh"
    if settings.kg:
        graph_option = f" --large {settings.kg}" if isinstance(settings.kg, str) else ""
        processes["kg"] = f"{prefix} kg{graph_option}" if is_installed("kg") else "not started: it is not installed"
    for pool in make_pools(agent_specs(settings), agents_per_process(settings)):
        processes[pool.process_name] = f"{prefix} agent {' '.join(pool.arguments)}"
    for name in settings.committee.judges:
        processes[f"member-{name}"] = f"{prefix} member --name {name}"
    if settings.committee.frontier.model:
        processes["probes"] = f"{prefix} probes"
    processes |= _follower_processes(settings, prefix)
    if request.command:
        processes["script"] = " ".join(request.command)
    elif request.starts_learner:
        processes["learner"] = f"{prefix} learner"
    if request.opens_monitor:
        command = f"{prefix} monitor --control  (in the terminal, if there is one)"
        processes["monitor"] = command if is_installed("monitor") else "not started: it is not installed"
    return [
        start_line(request.resolved),
        "# settings",
        *yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True).rstrip().splitlines(),
        f"# processes, each with its log in {home.path / 'runs'}",
        *(f"{name:<18}{command}" for name, command in processes.items()),
    ]


def _follower_processes(settings: Settings, prefix: str) -> dict[str, str]:
    """Return the processes that follow the log and send it elsewhere."""
    processes = {"notify": f"{prefix} notify"} if settings.notify.to else {}
    processes |= {f"export-{target}": f"{prefix} export {target}" for target in settings.export}
    if settings.metrics_port is not None or settings.otlp:
        processes["metrics"] = f"{prefix} metrics"
    return processes
