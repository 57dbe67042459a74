"""The commands `agent run`, `agent new` and `agent list`, to run, write and list agents."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from oven_controller.cli import completion
from oven_controller.cli.options import (
    DEFAULT_LIVE_RUN,
    argument,
    json_option,
    print_table,
    remote_options,
    run_argument,
    run_option,
)
from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.protocol import names
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import find_run
from oven_runs.home.run_folder import Home
from oven_runs.log.agent_table import HEADER, agent_rows
from oven_runs.log.run_summary import RunSummary
from oven_runs.settings.agent_options import describe_agent, numeric_options, parse_assignment
from oven_runs.settings.agents import agent_spec

TEMPLATE = '''"""{class_name}: say in one sentence what it watches for. `oven-controller agent list` shows this."""

from oven_agents import Agent, Vote, Window


class {class_name}(Agent):
    needs = ("loss",)  # metrics that it needs to vote; patterns such as "reward/*" are allowed
    moves = ("optimizer.lr_scale",)  # actuators that it may propose for

    def vote(self, window: Window) -> Vote | None:
        # Ignore measurements from before the last change: they belong to another configuration.
        losses = window.series("loss", after=window.last_change_tick(), last=20)
        if len(losses) < 20:
            return None
        before, now = sum(losses[:10]) / 10, sum(losses[10:]) / 10
        if now <= before:
            return None
        knob = window.knobs["optimizer.lr_scale"]
        return window.propose(
            knob.spec.name,
            knob.bounded(knob.number / 2),
            confidence=0.6,
            why=f"the loss rose from {{before:.3f}} to {{now:.3f}} over 20 steps",
            target="loss",
        )
'''


@click.command()
@argument("file", shell_complete=completion.agents_or_files, help="A Python file, or the name of an installed agent.")
@run_argument(DEFAULT_LIVE_RUN)
@click.option("--name", show_default="the file's name", help="Name under which it votes.")
@click.option("--shadow", is_flag=True, help="Log and score its votes without counting them.")
@click.option(
    "--trust",
    multiple=True,
    metavar="ACTUATOR",
    shell_complete=completion.knobs,
    help="Trust it with this knob immediately; repeatable. '*' means every knob that it moves.",
)
@click.option("--alone", is_flag=True, help="With --trust: its proposals decide without a second kind of evidence.")
@click.option(
    "--option",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the agent; repeatable. `agent list NAME` shows the options.",
)
def run_agent(
    file: str, run: str | None, name: str | None, shadow: bool, trust: Sequence[str], alone: bool, option: Sequence[str]
) -> int:
    """Run an agent alongside a running stack until Ctrl-C, or until the stack ends.

    The agent starts as a newcomer: its votes are counted and scored, but its proposals need a trusted agent's support.
    It earns trust through good outcomes, or gets it from --trust. Even then, its proposals need a vote with another
    kind of evidence, unless it may decide --alone.

    Example: oven-controller agent run my_agent.py --trust grad.clip --alone
    """
    from oven_controller.stack.agent_keys import admit
    from oven_controller.stack.preflight_checks import load_agents
    from oven_controller.stack.process_plan import Plan
    from oven_controller.stack.single_agent import run_alongside

    if alone and not trust:
        raise ConfigError("--alone without --trust has no effect; name the knobs: --trust grad.clip --alone")
    spec = agent_spec(file)
    name = names.validate("agent", name or spec.name)
    if option:
        options = numeric_options(name, dict(map(parse_assignment, option)))
        spec = replace(spec, options=tuple(options.items()))
        load_agents([replace(spec, name=name)], "--check")  # raises an error for options that the agent rejects
    folder = Home().find(run, running=True)
    admit(folder, name, installed=spec.is_installed and name == spec.name, is_new=True)
    settings = folder.earlier_settings()
    plan = Plan(folder, folder.info().url, str(settings.get("otlp", "")), settings.get("agents_memory_mb"))
    print(f"{name} is joining {folder.run}; press Ctrl-C to stop it", flush=True)
    service = plan.joining_agent(spec, name, shadow=shadow)
    return asyncio.run(run_alongside(folder, service, name, trust, alone))


@click.command()
@argument("name", help="The agent's name; the file is NAME.py in this folder.")
def new_agent(name: str) -> None:
    """Write a small agent as a starting point for your own.

    Example: oven-controller agent new plateau
    """
    stem = names.validate("agent", name).replace("-", "_")
    path = Path(f"{stem}.py")
    class_name = "".join(part.capitalize() for part in stem.split("_"))
    if not class_name.isidentifier():
        raise ConfigError(f"the agent name {name!r} cannot become the name of a Python class; start it with a letter")
    try:
        with path.open("x") as file:
            file.write(TEMPLATE.format(class_name=class_name))
    except FileExistsError:
        raise ConfigError(f"{path} already exists; choose another name, or remove the file first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    command = f"oven-controller agent run {path} --trust optimizer.lr_scale --alone"
    print(f"wrote {path}; try it alongside a running stack with `{command}`")


@click.command()
@argument("name", required=False, help="An installed agent or a Python file: also show its options.")
@run_option("Show this run's agents: state, metrics, knobs, why one is idle.")
@json_option
@remote_options
def list_agents(name: str | None, run: str | None, as_json: bool, endpoint: Endpoint) -> None:
    """List the installed agents with a summary of each. With NAME, show one agent and its options.

    With --run, list the agents of a run: what each reads and moves, its state, and why it has nothing to do.

    Example: oven-controller agent list learning_rate
    """
    if run is not None:
        if name:
            raise ConfigError(f"name an agent ({name}) or a run (--run {run}), not both")
        table = agent_rows(asyncio.run(_read_summary(find_run(run, endpoint))))
        if as_json:
            print(json.dumps([entry.model_dump(mode="json") for entry in table]))
        else:
            print_table(HEADER, (entry.cells() for entry in table if entry.state != "idle"))
            if idle := [(entry.agent, entry.reason) for entry in table if entry.state == "idle"]:
                print()
                print_table(("agent", "why it has nothing to do in this run"), idle)
        return
    agents = [_describe(name)] if name else _describe_installed()
    if as_json:
        print(json.dumps(agents))
        return
    rows = [(agent["name"], agent["does"]) for agent in agents]
    if name:
        rows += [(f"  {heading}", text) for heading, text in agents[0]["sections"].items()]
        options = agents[0]["options"]
        rows += [(f"  {option['name']}", f"{option['default']!r}: {option['meaning']}") for option in options]
    print_table(("agent", "does"), rows)


async def _read_summary(access: RunAccess) -> RunSummary:
    view = RunSummary()
    await access.read_view(view)
    return view


def _describe(name: str) -> dict[str, Any]:
    """Return an agent's fields. Raises UnknownNameError and ConfigError."""
    from oven_controller.stack.preflight_checks import load_agents

    spec = agent_spec(name)
    if spec.is_installed:
        return _agent_fields(name, plugins.load("agents", "agent", name))
    descriptions: list[dict[str, Any]] = json.loads(load_agents([spec], "--options"))
    return descriptions[0] | {"does": spec.target}


def _describe_installed() -> list[dict[str, Any]]:
    agents = []
    for name, entry_point in plugins.find_plugins("agents").items():
        try:
            agents.append(_agent_fields(name, entry_point.load(), entry_point.value))
        except Exception as error:  # a broken agent must not hide the others
            agents.append({"name": name, "does": f"cannot be imported: {error}", "sections": {}, "options": []})
    return agents


def _agent_fields(name: str, agent: type, default_summary: str = "") -> dict[str, Any]:
    return describe_agent(name, agent) | {"does": _summarize(agent) or default_summary}


def _summarize(agent: Any) -> str:
    """Return the first paragraph of the docstring of the agent's module, or of its class if the module has none."""
    docstring = sys.modules[agent.__module__].__doc__ or agent.__doc__ or ""
    return " ".join(docstring.strip().split("\n\n")[0].split())
