"""A TRL environment for repair tasks that sends tool calls to an OpenEnv server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError, ProcessError
from oven_recipes.environments.repair_environment import RepairTools
from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.repair_session import ToolResult

OPENENV_EXTRA: Final = "openenv"
CALL_TIMEOUT_S: Final = 330.0
"""Timeout of one tool call in seconds. It is longer than the 300 s that a call may spend on running tests."""


class OpenEnvRepair(RepairTools):
    """An environment with one connection to the server and one attempt at a time. `client` is OpenEnv's synchronous
    client. The class has no `close` method, because TRL would offer it to the policy as a tool."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._solved = False
        self._feedback: str | None = None

    def reset(self, **row: Any) -> None:
        result = self._client.reset(instance_id=row["instance_id"])
        self._solved, self._feedback = False, result.observation["feedback"]
        self.newest_call = self._fault = None

    @property
    def solved(self) -> bool:
        return self._solved

    @property
    def feedback(self) -> str | None:
        return self._feedback

    def _call(self, tool: str, **arguments: str) -> ToolResult:
        result = self._client.step({"tool": tool, "arguments": arguments})
        observation = result.observation
        self._solved, self._feedback = observation["solved"], observation["feedback"]
        return ToolResult(observation["text"], float(result.reward or 0), observation["failed"], observation["digest"])


@contextlib.contextmanager
def serve(instances: Sequence[Instance], repositories: Path | None = None) -> Iterator[Callable[[], RepairTools]]:
    """Start a server process for these instances, and yield a factory of environments that connect to it.
    `repositories` is the folder of clones, for instances that do not include their files."""
    if find_spec("openenv") is None:
        raise ConfigError(f'OpenEnv is not installed; run `pip install "oven-controller[{OPENENV_EXTRA}]"`')
    from openenv.core.generic_client import GenericEnvClient

    clients: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="oven-openenv-") as folder:
        instance_file = Path(folder, "instances.jsonl")
        instance_file.write_text("".join(f"{instance.model_dump_json()}\n" for instance in instances))
        command = [sys.executable, "-m", "oven_recipes.environments.openenv_server", str(instance_file)]
        command += [str(repositories)] if repositories else []
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise ProcessError(f"the OpenEnv server did not start; its exit code is {process.wait()}")

            def connect() -> RepairTools:
                address = f"http://127.0.0.1:{port}"
                clients.append(GenericEnvClient(base_url=address, message_timeout_s=CALL_TIMEOUT_S).sync())
                return OpenEnvRepair(clients[-1])

            yield connect
        finally:
            for client in clients:
                client.close()
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
