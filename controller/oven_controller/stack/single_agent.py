"""`agent run`: one agent beside a stack, until either ends.

It ends with the stack, or with a signal to this process, whatever its code is doing, and all that it started ends
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence

from oven_controller.stack.output import relay
from oven_controller.stack.plan import Service
from oven_core.cancellation import call_at_end, end
from oven_core.errors import BusError, OvenError
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder
from oven_runs.operator.operator_client import carried_out, new_command
from oven_runs.process.child import Child

GRACE_S = 3.0
"""To finish the vote that it is at, and to say goodbye."""
LOOK_S = 0.5
"""How often it looks whether the stack is up, and whether the agent has joined."""
ANSWER_S = 5.0
"""For the mesh's answer to a grant."""
TRIES = 20
"""Grants before the agent's joining is given up."""


async def run_beside(folder: RunFolder, service: Service, agent: str, trust: Sequence[str] = ()) -> int:
    """Its exit code, when it ended by itself or was told to; what it says is in its log and on the terminal. With
    `trust` the operator's word on these actuators follows as soon as the agent has joined."""
    stop = asyncio.Event()
    offset = service.log.stat().st_size if service.log.exists() else 0
    child = await service.start()
    ended = asyncio.create_task(child.wait())

    def on_signal() -> None:
        if stop.is_set():
            child.kill()
        stop.set()

    call_at_end(on_signal, signal.SIGHUP)
    copied = asyncio.Event()
    copying = asyncio.create_task(relay(service.log, offset, copied))
    trusting = asyncio.create_task(_trusted(folder, agent, trust))
    waiting = {ended, asyncio.create_task(stop.wait()), asyncio.create_task(_down(folder))}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        down = not ended.done() and not stop.is_set()
        if down:
            print(f"{folder.run} is down, and {service.name} ends with it", flush=True)
        code = await _ended(child)
        return 0 if down and code == BusError.exit_code else code  # it was about to connect
    finally:
        await end(*waiting, trusting)
        copied.set()
        with contextlib.suppress(OSError):  # nobody reads it any more
            await copying


async def _trusted(folder: RunFolder, agent: str, actuators: Sequence[str]) -> None:
    """Say it until the mesh has seen the agent join, and print the answer."""
    for attempt in range(TRIES if actuators else 0):
        command = new_command("trust", agent=agent, actuators=tuple(actuators))
        try:
            result = await carried_out(LocalRun(folder), command, ANSWER_S)
        except OvenError as error:
            print(f"{agent} is not trusted yet: {error}", flush=True)
            return
        if result.code == 0 or attempt == TRIES - 1:
            print(result.line(), flush=True)
            return
        await asyncio.sleep(LOOK_S)


async def _ended(child: Child) -> int:
    """Its code; a signal that was ours is a clean end."""
    if child.returncode is not None:
        child.close()
        return child.returncode
    code = await child.end(GRACE_S)
    killed = code in (128 + signal.SIGKILL, -signal.SIGKILL)  # by its guard, or with a guard that was too slow for it
    if killed:
        print(f"{child.name} did not end within {GRACE_S:g} s and was killed: its code does not come back", flush=True)
    return 0 if killed or code == 128 + signal.SIGTERM else code


async def _down(folder: RunFolder) -> None:
    while folder.locked():
        await asyncio.sleep(LOOK_S)
