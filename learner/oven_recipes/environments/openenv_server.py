"""An OpenEnv server for the environment `repair`, on the loopback address. It needs the extra `openenv`.

`python -m oven_recipes.environments.openenv_server INSTANCES.jsonl [REPOSITORIES]` prints the server's port, and exits
when its standard input is closed. The server has no authentication, so any user of this machine can connect. Code from
clients runs only in the sandbox.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from oven_recipes.environments.repair_instance import Instance, read_instances
from oven_recipes.environments.repair_session import RepairSession
from oven_recipes.environments.repositories import Repositories
from oven_recipes.environments.sandboxed_tests import SandboxedTests

MAX_SESSIONS: Final = 1024
"""Maximum number of concurrent attempts, one for each rollout of a trainer's batch."""


class RepairAction(Action):  # type: ignore[misc]
    """A tool call."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class RepairObservation(Observation):  # type: ignore[misc]
    """The result of a tool call. `reward` is the change in the share of passing tests. `solved` and `feedback` describe
    the whole attempt."""

    text: str = ""
    failed: bool = False
    digest: str = ""
    solved: bool = False
    feedback: str | None = None


class RepairServerEnvironment(Environment[RepairAction, RepairObservation, State]):  # type: ignore[misc]
    """A server-side environment for one connection, with one attempt at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, instances: Mapping[str, Instance], repositories: Repositories, tests: SandboxedTests) -> None:
        super().__init__()
        self._instances, self._repositories, self._tests = instances, repositories, tests
        self._session: RepairSession | None = None
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, instance_id: str = "", **_: Any
    ) -> RepairObservation:
        """Start an attempt. Raises KeyError for an unknown instance."""
        instance = self._instances[instance_id]
        self._session = RepairSession(instance, self._repositories.read_files(instance), self._tests)
        self._state = State(episode_id=episode_id or instance_id, step_count=0)
        return RepairObservation(
            text=instance.problem_statement, digest=self._session.digest, feedback=self._session.feedback
        )

    def step(self, action: RepairAction, timeout_s: float | None = None, **_: Any) -> RepairObservation:
        """Run a tool call. Raises RuntimeError before the first `reset`."""
        if self._session is None:
            raise RuntimeError("there is no attempt yet; call reset first")
        result = self._session.call(action.tool, action.arguments)
        self._state.step_count += 1
        return RepairObservation(
            text=result.text,
            failed=result.failed,
            digest=result.digest,
            solved=self._session.solved,
            feedback=self._session.feedback,
            reward=result.reward,
            done=self._session.submitted,
        )

    @property
    def state(self) -> State:
        return self._state


def main(arguments: list[str]) -> None:
    """Run the server. Raises ConfigError if an instance is invalid or its repository is missing."""
    repositories = Repositories(Path(arguments[1]) if len(arguments) > 1 else None)
    instances = {instance.instance_id: instance for instance in read_instances(Path(arguments[0]))}
    for instance in instances.values():
        repositories.check(instance)
    tests = SandboxedTests()
    app = create_fastapi_app(
        lambda: RepairServerEnvironment(instances, repositories, tests),
        RepairAction,
        RepairObservation,
        max_concurrent_envs=MAX_SESSIONS,
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])


def _exit_with_parent() -> None:
    """Exit when standard input is closed, which means that the parent process has exited."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
