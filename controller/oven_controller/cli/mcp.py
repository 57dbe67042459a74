"""The `mcp` command: a Model Context Protocol server for coding agents, over stdin and stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oven_controller.cli.options import remote_options, run_argument
from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint


@click.command()
@run_argument("all runs")
@click.option(
    "--control",
    is_flag=True,
    help="Also offer approve, veto, set, hold and resume, signed with the MCP server's own key.",
)
@click.option("--propose", is_flag=True, help="Also offer propose, which casts votes of an agent without trust.")
@click.option(
    "--agent-files",
    type=click.Path(exists=True, path_type=Path),
    metavar="FOLDER",
    help="Allow backtests of the Python files in this folder, which executes them.",
)
@remote_options
def mcp(run: str | None, control: bool, propose: bool, agent_files: Path | None, endpoint: Endpoint) -> None:
    """Serve runs to a coding agent over the Model Context Protocol, on stdin and stdout. With RUN, serve only that run.

    Needs the extra `mcp`.

    Example: claude mcp add oven -- oven-controller mcp

    Example: oven-controller mcp grpo-1121-0231 --propose

    Example: oven-controller mcp grpo-1121-0231 --control
    """
    try:
        from oven_controller.mcp_server.allowed_runs import AllowedRuns
        from oven_controller.mcp_server.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ConfigError(
            'the package "mcp" is not installed, or is older than 2.3; `pip install "oven-controller[mcp]"` installs it'
        ) from error
    allowed_runs = AllowedRuns(run, endpoint, agent_files)
    if allowed_runs.run is not None or allowed_runs.is_remote:
        allowed_runs.find(None)  # reports an unknown name now instead of at the first call
    if sys.stdin.isatty():
        print(
            "waiting for a coding agent on stdin, which normally starts this server; Ctrl-C stops it", file=sys.stderr
        )
    serve(allowed_runs, control=control, propose=propose)
