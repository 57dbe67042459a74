"""`agent run | new | list`: agents beside those that a stack starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import LiveRunOption

NAME_COLUMNS = 17
"""Of a listing: as wide as the name is shown, the space behind it included."""
TEMPLATE = '''"""{title}: say here in a sentence what it watches for. It is what `oven-controller agent list` shows."""

from oven_agents import Agent, Vote, Window


class {title}(Agent):
    needs = ("loss",)  # metrics without which it cannot vote; patterns such as "reward/*" are allowed
    moves = ("optimizer.lr_scale",)  # actuators that it may propose for

    def vote(self, window: Window) -> Vote | None:
        # A receipt resets the window: what was measured before a change describes another configuration.
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


def run_agent(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A Python file, or the name of an installed agent.",
            autocompletion=completion.agents_or_files,
        ),
    ],
    run: LiveRunOption = None,
    name: Annotated[
        str | None, typer.Option(help="The name under which it votes.", show_default="the file's name")
    ] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Its votes are logged and scored, and do not count.")
    ] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTUATOR",
            help="Trust it with this knob at once; repeatable. '*': every knob that it moves.",
            autocompletion=completion.knobs,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set an option of the agent; repeat it. `agent list` shows them."),
    ] = None,
) -> None:
    """Run an agent beside a stack that is up, until Ctrl-C or the stack's end. It is a newcomer: its votes are counted
    and scored, and carry a ballot only beside those of a trusted agent, until outcomes or --trust speak for it.

    Example: oven-controller agent run my_agent.py --trust grad.clip
    """
    import asyncio
    from dataclasses import replace

    from oven_controller.stack.agent_keys import admit
    from oven_controller.stack.plan import Plan
    from oven_controller.stack.preflight_checks import load_agents
    from oven_controller.stack.single_agent import run_beside
    from oven_core.protocol import names
    from oven_runs.home.run_folder import Home
    from oven_runs.settings.agent_options import assigned, numbers
    from oven_runs.settings.agents import agent_spec

    spec = agent_spec(file)
    name = names.checked("agent", name or spec.name)
    if option:
        options = numbers(name, dict(map(assigned, option)))
        spec = replace(spec, options=tuple(options.items()))
        load_agents([replace(spec, name=name)], "--check")
    folder = Home().find(run, running=True)
    admit(folder, name, shipped=spec.installed and name == spec.name, fresh=True)
    earlier = folder.earlier_settings()
    plan = Plan(folder, folder.info().url, str(earlier.get("otlp", "")), earlier.get("agents_memory_mb"))
    print(f"{name} joins {folder.run}; Ctrl-C ends it", flush=True)
    raise typer.Exit(asyncio.run(run_beside(folder, plan.guest(spec, name, shadow=shadow), name, trust or ())))


def new_agent(
    name: Annotated[str, typer.Argument(help="The agent's name; the file is NAME.py here.")],
) -> None:
    """Write a small agent to start from.

    Example: oven-controller agent new plateau
    """
    from oven_core.errors import ConfigError
    from oven_core.protocol import names

    stem = names.checked("agent", name).replace("-", "_")
    path = Path(f"{stem}.py")
    title = "".join(part.capitalize() for part in stem.split("_"))
    if not title.isidentifier():
        raise ConfigError(f"agent {name!r} makes no Python class name; begin it with a letter")
    try:
        with path.open("x") as out:
            out.write(TEMPLATE.format(title=title))
    except FileExistsError:
        raise ConfigError(f"{path} exists; choose another name, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}; try it with `oven-controller agent run {path} --trust optimizer.lr_scale` beside a stack")


def list_agents(
    name: Annotated[
        str | None, typer.Argument(help="Of an installed agent, or a Python file: show its options, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with each agent's options.")] = False,
) -> None:
    """List the agents that are installed, with what each does; with NAME, one agent's options.

    Example: oven-controller agent list learning_rate
    """
    import json
    import shutil

    found = [_described(name)] if name else _installed()
    if as_json:
        print(json.dumps(found))
        return
    columns = max(shutil.get_terminal_size().columns, NAME_COLUMNS + 24)
    for agent in found:
        print(_wrapped(agent["name"], agent["does"], columns))
        for heading, text in agent["sections"].items() if name else ():
            print(_wrapped(f"  {heading}", text, columns))
        for option in agent["options"] if name else ():
            print(_wrapped(f"  {option['name']}", f"{option['default']!r}: {option['meaning']}", columns))


def _wrapped(name: str, text: str, columns: int) -> str:
    """A name, and its text in a column beside it; below it where the name is too long."""
    import textwrap

    from oven_core.terminal_text import clean

    indent = " " * NAME_COLUMNS
    lines = textwrap.wrap(clean(text), columns, initial_indent=indent, subsequent_indent=indent) or [indent]
    if len(name) >= NAME_COLUMNS:
        return "\n".join([clean(name), *lines])
    return "\n".join([f"{clean(name):<{NAME_COLUMNS}}{lines[0].lstrip()}", *lines[1:]])


def _described(name: str) -> dict[str, Any]:
    """One agent. Raises UnknownNameError, ConfigError."""
    import json

    from oven_controller.stack.preflight_checks import load_agents
    from oven_core import plugins
    from oven_runs.settings.agents import agent_spec

    spec = agent_spec(name)
    if spec.installed:
        return _plain(name, plugins.load("agents", "agent", name))
    told: list[dict[str, Any]] = json.loads(load_agents([spec], "--options"))
    return told[0] | {"does": spec.target}


def _installed() -> list[dict[str, Any]]:
    from oven_core import plugins

    found = []
    for name, point in plugins.points("agents").items():
        try:
            found.append(_plain(name, point.load(), point.value))
        except Exception as error:  # one that is broken must not hide the others
            found.append({"name": name, "does": f"cannot be imported: {error}", "sections": {}, "options": []})
    return found


def _plain(name: str, agent: type, otherwise: str = "") -> dict[str, Any]:
    from oven_runs.settings.agent_options import described

    return described(name, agent) | {"does": _summary(agent) or otherwise}


def _summary(agent: Any) -> str:
    """The first paragraph of what its file says of it; of what its class says, where the file says nothing."""
    said = sys.modules[agent.__module__].__doc__ or agent.__doc__ or ""
    return " ".join(said.strip().split("\n\n")[0].split())
