"""The commands `up` and `run --`, which start a stack and wait until it ends, and `down`, which stops it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from oven_controller.cli.lazy_group import single_command
from oven_controller.cli.options import Config, LiveRunName, RunAlias, Settings, one_run, run_option
from oven_controller.cli.recipe_options import RecipeCommand, recipe_layers
from oven_core.errors import ConfigError, ProcessError
from oven_runs.home.run_folder import Home
from oven_runs.process.child_process import end_with_input
from oven_runs.process.secret_arguments import conceal
from oven_runs.settings.layers import Layer
from oven_runs.settings.notifications import is_reference
from oven_runs.settings.resolution import ResolvedSettings, resolve
from oven_runs.settings.run_settings import ATTACHED

Recipe = Annotated[str | None, typer.Option(help="Recipe to train.")]
StartAt = Annotated[str | None, typer.Option("--start", help="Starting point of the recipe; all are listed below.")]
Run = Annotated[str | None, run_option("Run name; with --resume, the run to continue.")]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps.")]
Minutes = Annotated[float | None, typer.Option(help="Time budget.")]
Seed = Annotated[int | None, typer.Option(help="Random seed.")]
Nats = Annotated[str | None, typer.Option(metavar="URL", help="A NATS server to use instead of the embedded one.")]
Creds = Annotated[Path | None, typer.Option(help="With --nats: an .nk file, or a folder with one per role.")]
TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", help="With --nats tls://…: the certificate authority to trust (PEM).")
]
Port = Annotated[int | None, typer.Option(help="Port of the embedded server.", show_default="a free one")]
Otlp = Annotated[
    str | None, typer.Option(metavar="URL", help="Send traces and metrics to this address (OTLP over HTTP).")
]
Meshes = Annotated[
    int | None, typer.Option(help="Number of mesh replicas, 1 to 5. One running replica is enough for decisions.")
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="URL",
        help="Send messages to this address: https://… (JSON), slack://…, discord://…, mailtos://…, or env:NAME; "
        "repeatable.",
    ),
]
Export = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        metavar="TARGET",
        help="Export the run while it trains, to mlflow, parquet, tensorboard, trackio or wandb; repeatable.",
    ),
]
MetricsPort = Annotated[
    int | None, typer.Option(help="Serve a page for Prometheus on this port of 127.0.0.1.", show_default="none")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the processes and settings without starting anything.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run (--run, else the newest).")]
SHUTDOWN_TIMEOUT_S = 45.0
"""Seconds that `down` waits for the stack to end."""


def up(
    ctx: typer.Context,
    recipe: Recipe = None,
    start: StartAt = None,
    config: Config = None,
    overrides: Settings = None,
    run: Run = None,
    resume: Resume = False,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Print progress lines instead of opening the monitor.")
    ] = False,
    nats: Nats = None,
    creds: Creds = None,
    tls_ca: TlsCa = None,
    port: Port = None,
    otlp: Otlp = None,
    meshes: Meshes = None,
    notify: Notify = None,
    export: Export = None,
    metrics_port: MetricsPort = None,
    no_learner: Annotated[
        bool,
        typer.Option("--no-learner", help="Start everything except the learner, and wait for your script to connect."),
    ] = False,
    dry_run: DryRun = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="With --no-learner: print run, URL, folder and environment as one line of JSON, and later the summary "
            "as another. Everything else goes to stderr.",
        ),
    ] = False,
    until_eof: Annotated[
        bool,
        typer.Option(
            "--until-eof", help="Shut down when standard input ends, i.e. when the program that started the stack ends."
        ),
    ] = False,
) -> None:
    """Start a run (the bus, the mesh, the agents and the learner) and wait until it ends or Ctrl-C.

    Each setting of the recipe is also an option: `up --recipe NAME --help` lists them.

    Example: oven-controller up --headless --start tuned --steps 120 --set rules.window_ticks=5

    Example: oven-controller up --recipe pretrain --corpus ~/texts --batch 32
    """
    recipe_flags = recipe_layers(ctx)
    flags = {
        "recipe": recipe,
        "start": start,
        "steps": steps,
        "minutes": minutes,
        "seed": seed,
        "headless": headless or None,
        **_server_flags(nats, creds, tls_ca, port, otlp, meshes),
        **_notify_flags(notify),
        **_export_flags(export, metrics_port),
    }
    if no_learner:
        ignored_options = [f"--{name}" for name in ("start", "steps", "minutes", "seed") if flags[name] is not None]
        ignored_options += [layer.source for layer in recipe_flags]
        if ignored_options:
            raise ConfigError(
                f"{', '.join(ignored_options)} has no effect with --no-learner; omit it: your script decides that"
            )
    if as_json and not no_learner:
        raise ConfigError("--json needs --no-learner, because it prints what your own learner needs to connect")
    resolved = _resolve(flags, config, overrides, run, resume, attached=no_learner, recipe_flags=recipe_flags)
    if until_eof:
        end_with_input()
    _start(resolved, run, resume, dry_run, starts_learner=not no_learner, on_ready=_print_json if as_json else None)


up_command = single_command(up, command_class=RecipeCommand)


def run_script(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="Command of your training script.")],
    config: Config = None,
    overrides: Settings = None,
    run: Run = None,
    resume: Resume = False,
    nats: Nats = None,
    creds: Creds = None,
    tls_ca: TlsCa = None,
    port: Port = None,
    otlp: Otlp = None,
    meshes: Meshes = None,
    notify: Notify = None,
    export: Export = None,
    metrics_port: MetricsPort = None,
    tap: Annotated[
        bool, typer.Option("--tap", help="Observe what the script logs to wandb, TensorBoard, and other loggers.")
    ] = False,
    auto_attach: Annotated[
        bool,
        typer.Option(
            "--auto-attach", help="Attach to the script's trainer, LightningModule, or loop under accelerate."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write the script's output to its log only.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Start the stack around your own training script. The stack ends with the script and returns its exit code.

    Example: oven-controller run -- accelerate launch train.py

    Example: oven-controller run --tap -- python train.py

    Example: oven-controller run --auto-attach -- trl grpo --config grpo.yaml
    """
    flags = {
        **_server_flags(nats, creds, tls_ca, port, otlp, meshes),
        **_notify_flags(notify),
        **_export_flags(export, metrics_port),
    }
    resolved = _resolve(flags, config, overrides, run, resume, attached=True)
    hooks = (*(["OVEN_TAP"] if tap else []), *(["OVEN_AUTO_ATTACH"] if auto_attach else []))
    _start(resolved, run, resume, dry_run, command=tuple(command), hooks=hooks, quiet=quiet)


def _server_flags(
    nats: str | None, creds: Path | None, tls_ca: Path | None, port: int | None, otlp: str | None, meshes: int | None
) -> dict[str, Any]:
    files = {"creds": str(creds) if creds else None, "tls_ca": str(tls_ca) if tls_ca else None}
    return {"nats": nats, **files, "port": port, "otlp": otlp, "meshes": meshes}


def _notify_flags(urls: list[str] | None) -> dict[str, Any]:
    conceal(urls or ())  # from other users' `ps`
    return {"notify": {"to": urls}} if urls else {}


def _export_flags(targets: list[str] | None, metrics_port: int | None) -> dict[str, Any]:
    return {"metrics_port": metrics_port} | ({"export": targets} if targets else {})


def _resolve(
    flags: dict[str, Any],
    config: Path | None,
    overrides: list[str] | None,
    run: str | None,
    resume: bool,
    attached: bool,
    recipe_flags: Sequence[Layer] = (),
) -> ResolvedSettings:
    earlier = Home().find(run).earlier_settings() if resume else None
    if earlier is not None and (earlier.get("recipe") == ATTACHED) != attached:
        raise ConfigError(
            "use `up` to resume a recipe's run, and `run --` or `up --no-learner` to resume a run with your own script"
        )
    resolved = resolve(
        config=config,
        sets=overrides or (),
        flags=flags,
        recipe_flags=recipe_flags,
        environ=os.environ,
        attached=attached,
        earlier_settings=earlier,
    )
    conceal(recipient.url for recipient in resolved.settings.notify.to if not is_reference(recipient.url))
    return resolved


def _start(resolved: ResolvedSettings, run: str | None, resume: bool, is_dry_run: bool, **options: Any) -> None:
    from oven_controller.stack import dry_run
    from oven_controller.stack.preflight_checks import Request
    from oven_controller.stack.up import run_stack

    request = Request(resolved, run=run, resume=resume, **options)
    if is_dry_run:
        print("\n".join(dry_run.output_lines(request, Home())))
        return
    out = _print_line if request.on_ready is None else partial(_print_line, stream=sys.stderr)
    raise typer.Exit(asyncio.run(run_stack(request, Home(), out)))


def _print_json(fields: Mapping[str, Any]) -> None:
    _print_line(json.dumps(fields))


def _print_line(line: str, stream: TextIO | None = None) -> None:
    """Print a line. If the terminal was closed, discard all further output so that the run can end cleanly."""
    try:
        print(line, file=stream, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        os.close(null)


def down(run: LiveRunName = None, run_: RunAlias = None) -> None:
    """Shut down a running stack cleanly, and wait until it has ended. A trainer saves a checkpoint first.

    Example: oven-controller down grpo-1121-0231
    """
    folder = Home().find(one_run(run, run_), running=True)
    pid = folder.info().pid
    print(f"shutting down {folder.run} (pid {pid})", flush=True)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError as error:
        raise ProcessError(f"process {pid} belongs to another user; ask them, or use `oven-controller stop`") from error
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
    while folder.is_locked():
        if time.monotonic() > deadline:
            limit = f"{SHUTDOWN_TIMEOUT_S:g} s"
            raise ProcessError(f"run {folder.run!r} did not end within {limit}; `kill -9 {pid}` ends the stack")
        time.sleep(0.1)
    print(f"{folder.run} is down ({folder.status()})")
