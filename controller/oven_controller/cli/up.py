"""The commands `up` and `run --`, which start a stack and wait until it ends, and `down`, which stops it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from oven_controller.cli.options import (
    DEFAULT_LIVE_RUN,
    PATH,
    argument,
    config_option,
    run_argument,
    run_option,
    settings_option,
)
from oven_controller.cli.recipe_options import RecipeCommand, recipe_layers
from oven_core.errors import ConfigError, ProcessError
from oven_runs.home.run_folder import Home
from oven_runs.process.child_process import end_with_input
from oven_runs.process.secret_arguments import conceal
from oven_runs.settings.completions import ATTACHED
from oven_runs.settings.layers import Layer
from oven_runs.settings.notifications import is_reference
from oven_runs.settings.resolution import ResolvedSettings, resolve

SHUTDOWN_TIMEOUT_S = 45.0
"""Seconds that `down` waits for the stack to end."""


def _stack_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `up` and `run` share. The command gets those that are settings as `flags`."""

    @config_option
    @settings_option
    @run_option("Run name; with --resume, the run to continue.")
    @click.option("--resume", is_flag=True, help="Continue a run (--run, else the newest).")
    @click.option("--nats", metavar="URL", help="A NATS server to use instead of the embedded one.")
    @click.option("--creds", type=PATH, help="With --nats: an .nk file, or a folder with one per role.")
    @click.option("--tls-ca", type=PATH, help="With --nats tls://…: the certificate authority to trust (PEM).")
    @click.option("--port", type=int, show_default="a free one", help="Port of the embedded server.")
    @click.option("--otlp", metavar="URL", help="Send traces and metrics to this address (OTLP over HTTP).")
    @click.option(
        "--meshes", type=int, help="Number of mesh replicas, 1 to 5. One running replica is enough for decisions."
    )
    @click.option(
        "--notify",
        multiple=True,
        metavar="URL",
        help="Send messages to this address: https://… (JSON), slack://…, discord://…, mailtos://…, or env:NAME; "
        "repeatable.",
    )
    @click.option(
        "--export",
        multiple=True,
        metavar="TARGET",
        help="Export the run while it trains, to mlflow, parquet, tensorboard, trackio or wandb; repeatable.",
    )
    @click.option(
        "--metrics-port", type=int, show_default="none", help="Serve a page for Prometheus on this port of 127.0.0.1."
    )
    @click.option("--dry-run", is_flag=True, help="Print the processes and settings without starting anything.")
    @functools.wraps(command)
    def wrapper(
        *,
        nats: str | None,
        creds: Path | None,
        tls_ca: Path | None,
        port: int | None,
        otlp: str | None,
        meshes: int | None,
        notify: Sequence[str],
        export: Sequence[str],
        metrics_port: int | None,
        **options: Any,
    ) -> Any:
        conceal(notify)  # from other users' `ps`
        files = {"creds": str(creds) if creds else None, "tls_ca": str(tls_ca) if tls_ca else None}
        flags: dict[str, Any] = {"nats": nats, **files, "port": port, "otlp": otlp, "meshes": meshes}
        flags |= {"metrics_port": metrics_port, "export": list(export) or None}
        flags |= {"notify": {"to": list(notify)}} if notify else {}
        return command(flags=flags, **options)

    return wrapper


@click.command(cls=RecipeCommand)
@click.option("--recipe", help="Recipe to train.")
@click.option("--start", help="Starting point of the recipe; all are listed below.")
@click.option("--steps", type=int, help="Optimizer steps.")
@click.option("--minutes", type=float, help="Time budget.")
@click.option("--seed", type=int, help="Random seed.")
@click.option("--headless", is_flag=True, help="Print progress lines instead of opening the monitor.")
@_stack_options
@click.option(
    "--no-learner", is_flag=True, help="Start everything except the learner, and wait for your script to connect."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --no-learner: print run, URL, folder and environment as one line of JSON, and later the summary as "
    "another. Everything else goes to stderr.",
)
@click.option(
    "--until-eof",
    is_flag=True,
    help="Shut down when standard input ends, i.e. when the program that started the stack ends.",
)
@click.pass_context
def up(
    ctx: click.Context,
    recipe: str | None,
    start: str | None,
    steps: int | None,
    minutes: float | None,
    seed: int | None,
    headless: bool,
    config: Path | None,
    overrides: Sequence[str],
    run: str | None,
    resume: bool,
    dry_run: bool,
    flags: dict[str, Any],
    no_learner: bool,
    as_json: bool,
    until_eof: bool,
) -> int:
    """Start a run (the bus, the mesh, the agents and the learner) and wait until it ends or Ctrl-C.

    Each setting of the recipe is also an option: `up --recipe NAME --help` lists them.

    Example: oven-controller up --headless --start tuned --steps 120 --set rules.window_ticks=5

    Example: oven-controller up --recipe pretrain --corpus ~/texts --batch 32
    """
    recipe_flags = recipe_layers(ctx)
    flags |= {"recipe": recipe, "start": start, "steps": steps, "minutes": minutes, "seed": seed}
    flags["headless"] = headless or None
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
    on_ready = _print_json if as_json else None
    return _start(resolved, run, resume, dry_run, starts_learner=not no_learner, on_ready=on_ready)


@click.command("run")
@argument("command", nargs=-1, required=True, metavar="-- COMMAND…", help="Command of your training script.")
@_stack_options
@click.option("--tap", is_flag=True, help="Observe what the script logs to wandb, TensorBoard, and other loggers.")
@click.option(
    "--auto-attach", is_flag=True, help="Attach to the script's trainer, LightningModule, or loop under accelerate."
)
@click.option("--quiet", is_flag=True, help="Write the script's output to its log only.")
def run_script(
    command: tuple[str, ...],
    config: Path | None,
    overrides: Sequence[str],
    run: str | None,
    resume: bool,
    dry_run: bool,
    flags: dict[str, Any],
    tap: bool,
    auto_attach: bool,
    quiet: bool,
) -> int:
    """Start the stack around your own training script. The stack ends with the script and returns its exit code.

    Example: oven-controller run -- accelerate launch train.py

    Example: oven-controller run --tap -- python train.py

    Example: oven-controller run --auto-attach -- trl grpo --config grpo.yaml
    """
    resolved = _resolve(flags, config, overrides, run, resume, attached=True)
    hooks = (*(["OVEN_TAP"] if tap else []), *(["OVEN_AUTO_ATTACH"] if auto_attach else []))
    return _start(resolved, run, resume, dry_run, command=command, hooks=hooks, quiet=quiet)


def _resolve(
    flags: dict[str, Any],
    config: Path | None,
    overrides: Sequence[str],
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
        sets=overrides,
        flags=flags,
        recipe_flags=recipe_flags,
        environ=os.environ,
        attached=attached,
        earlier_settings=earlier,
    )
    conceal(recipient.url for recipient in resolved.settings.notify.to if not is_reference(recipient.url))
    return resolved


def _start(resolved: ResolvedSettings, run: str | None, resume: bool, is_dry_run: bool, **options: Any) -> int:
    from oven_controller.stack import dry_run
    from oven_controller.stack.preflight_checks import Request
    from oven_controller.stack.up import run_stack

    request = Request(resolved, run=run, resume=resume, **options)
    if is_dry_run:
        print("\n".join(dry_run.output_lines(request, Home())))
        return 0
    out = _print_line if request.on_ready is None else functools.partial(_print_line, stream=sys.stderr)
    return asyncio.run(run_stack(request, Home(), out))


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


@click.command()
@run_argument(DEFAULT_LIVE_RUN)
def down(run: str | None) -> None:
    """Shut down a running stack cleanly, and wait until it has ended. A trainer saves a checkpoint first.

    Example: oven-controller down grpo-1121-0231
    """
    folder = Home().find(run, running=True)
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
