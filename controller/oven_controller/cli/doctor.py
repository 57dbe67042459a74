"""`doctor`: checks whether this machine is ready for a run, or whether its judges can be asked."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli.options import Json

if TYPE_CHECKING:
    from oven_controller.stack.doctor import Check

_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Check this port, too.")] = None,
    judges: Annotated[
        bool, typer.Option("--judges", help="Ask each judge of the committee once instead. This costs a few tokens.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="With --judges: a YAML file with settings.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="With --judges: one setting; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for what a run would miss here: packages, the server, a port, space, the terminal, keys, leftovers. With
    --judges: whether each judge answers, and what of a JSON Schema, log-probabilities and a price there is.

    Exit code 1 when something fails. Example: oven-controller doctor --judges --config oven.yaml
    """
    if judges:
        ready = _judges(config, sets or [], as_json)
    elif config is not None or sets:
        from oven_core.errors import ConfigError

        raise ConfigError("--config and --set are for `doctor --judges`; without it the machine is looked at")
    else:
        ready = _machine(port, as_json)
    if not ready:
        raise typer.Exit(1)


def _machine(port: int | None, as_json: bool) -> bool:
    from oven_controller.stack.doctor_facts import examine
    from oven_runs.home.run_folder import Home

    checks = examine(Home(), port)
    ready = all(check.state != "fail" for check in checks)
    if as_json:
        print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            _show(check)
        print("ready" if ready else "not ready: see what fails above")
    return ready


def _show(check: Check) -> None:
    typer.echo(f"{typer.style(f'{check.state:<5}', fg=_COLOURS[check.state])} {check.name:<12} {check.found}")
    if check.remedy:
        typer.echo(f"{'':19}→ {check.remedy}")


def _judges(config: Path | None, sets: list[str], as_json: bool) -> bool:
    from oven_controller.stack.judge_probes import probe_judges
    from oven_runs.settings.resolution import resolve

    committee = resolve(config=config, sets=sets, environ=os.environ, attached=True).settings.committee
    found = probe_judges(committee)
    ready = all(one["can_judge"] for one in found.values())
    if as_json:
        print(json.dumps({"ready": ready, "judges": found}))
    else:
        _table(found)
        others = [f"{name} ({one.kind})" for name, one in committee.members.items() if name not in found]
        if others:
            print(f"not asked, since they run in the learner: {', '.join(others)}")
        print("each of them can judge" if ready else "not ready: see what fails above")
    return ready


def _table(found: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("member", "provider", "model", "schema", "logprobs", "$ per 1M in/out", "latency")
    table = Table(*columns, box=None, pad_edge=False)
    for name, one in found.items():
        price, latency = one.get("usd_per_million"), one.get("latency_s")
        table.add_row(
            name,
            one["provider"],
            one["model"],
            one.get("schema") or "–",
            f"top {one['top_logprobs']}" if one.get("top_logprobs") else "–",
            f"{price[0]:g} / {price[1]:g}" if price else "not known",
            f"{latency:.1f} s" if latency is not None and one["can_judge"] else "–",
        )
    Console().print(table)
    for name, one in found.items():
        if not one["can_judge"]:
            typer.echo(f"{typer.style('fail ', fg=_COLOURS['fail'])} {name}: {one['failure']}: {one['detail']}")
            if one["remedy"]:
                typer.echo(f"      → {one['remedy']}")
        for lack in one["lacks"]:
            typer.echo(f"{typer.style('warn ', fg=_COLOURS['warn'])} {name}: {lack}")
