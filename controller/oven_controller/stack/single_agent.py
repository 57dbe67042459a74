"""Runs one agent alongside a stack until either ends, for `agent run`.

The agent and its child processes end with the stack, or on a signal to this process, even if the agent hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence

from oven_controller.stack.process_plan import Service
from oven_controller.stack.terminal_output import relay
from oven_core.cancellation import end, on_termination
from oven_core.errors import BusError, OvenError
from oven_core.protocol.messages import AgentStatus, RunStarted
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder
from oven_runs.operator.operator_client import execute_command, new_command
from oven_runs.process.child_process import Child

GRACE_S = 3.0
"""Grace period in seconds for the agent to finish a vote and leave."""
POLL_S = 0.5
"""Seconds between two checks that the stack is up."""
ANSWER_TIMEOUT_S = 5.0
"""Timeout in seconds for the mesh's answer to a grant of trust."""


async def run_alongside(
    folder: RunFolder, service: Service, agent: str, knobs: Sequence[str] = (), alone: bool = False
) -> int:
    """Run the agent and return its exit code. The agent's output goes to its log and to the terminal. As soon as
    the agent has joined, it is trusted with `knobs`, on which it decides alone if `alone`."""
    stop = asyncio.Event()
    offset = service.log.stat().st_size if service.log.exists() else 0
    child = await service.start()
    end_task = asyncio.create_task(child.wait())

    def on_signal() -> None:
        if stop.is_set():  # the second signal
            child.kill()
        stop.set()

    on_termination(on_signal, signal.SIGHUP)
    agent_ended = asyncio.Event()
    copy_task = asyncio.create_task(relay(service.log, offset, agent_ended))
    trust_task = asyncio.create_task(_grant_trust(folder, agent, knobs, alone))
    tasks = {end_task, asyncio.create_task(stop.wait()), asyncio.create_task(_wait_until_down(folder))}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stack_ended = not end_task.done() and not stop.is_set()
        if stack_ended:
            print(f"{folder.run} is down; stopping {service.name}", flush=True)
        code = await _end_child(child)
        return 0 if stack_ended and code == BusError.exit_code else code  # an agent that was still connecting
    finally:
        await end(*tasks, trust_task)
        agent_ended.set()
        with contextlib.suppress(OSError):  # the terminal was closed
            await copy_task


async def _grant_trust(folder: RunFolder, agent: str, knobs: Sequence[str], alone: bool) -> None:
    """When the agent has joined and the run has started, trust the agent with the knobs and print the answer."""
    if not knobs:
        return
    run = LocalRun(folder)
    has_started = has_joined = False
    try:
        async with contextlib.aclosing(run.follow()) as events:
            async for event in events:
                has_started |= isinstance(event.body, RunStarted)
                if isinstance(event.body, AgentStatus) and event.author == agent:
                    has_joined = event.body.state != "left"
                if has_started and has_joined:  # RunStarted announces the operator's key
                    break
        command = new_command("trust", agent=agent, actuators=tuple(knobs), alone=alone)
        print((await execute_command(run, command, ANSWER_TIMEOUT_S)).line(), flush=True)
    except OvenError as error:
        print(f"could not grant trust to {agent}: {error}", flush=True)


async def _end_child(child: Child) -> int:
    """End the child if it is running. Return its exit code, or 0 if this process stopped it with a signal."""
    if child.returncode is not None:
        child.close()
        return child.returncode
    code = await child.end(GRACE_S)
    was_killed = code in (128 + signal.SIGKILL, -signal.SIGKILL)  # its guard killed it, or was killed with it
    if was_killed:
        print(f"{child.name} did not end within {GRACE_S:g} s and was killed: its code did not return", flush=True)
    return 0 if was_killed or code == 128 + signal.SIGTERM else code


async def _wait_until_down(folder: RunFolder) -> None:
    while folder.is_locked():
        await asyncio.sleep(POLL_S)
