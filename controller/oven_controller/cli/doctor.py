"""`doctor`: checks whether this machine is ready for a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli.options import Json

if TYPE_CHECKING:
    from oven_controller.stack.doctor import Check

_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Check this port, too.")] = None,
    as_json: Json = False,
) -> None:
    """Look for what a run would miss here: packages, the server, a port, space, the terminal, keys, leftovers.

    Exit code 1 when something fails. Example: oven-controller doctor --json
    """
    from oven_controller.runs.folder import Home
    from oven_controller.stack.doctor_facts import examine

    checks = examine(Home(), port)
    ready = all(check.state != "fail" for check in checks)
    if as_json:
        print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            _show(check)
        print("ready" if ready else "not ready: see what fails above")
    if not ready:
        raise typer.Exit(1)


def _show(check: Check) -> None:
    typer.echo(f"{typer.style(f'{check.state:<5}', fg=_COLOURS[check.state])} {check.name:<12} {check.found}")
    if check.remedy:
        typer.echo(f"{'':19}→ {check.remedy}")
