"""Token scores in a separate process, one at a time: `answer` starts it, and this module is what it runs.

A process and not a thread: cutting a graph's names into the tokens of a large vocabulary is Python that holds the
interpreter's lock for seconds, and meanwhile agents want a diagnosis in 250 ms. A process can also be ended when it
takes too long, and gives all of its memory back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError, OvenError

LIMIT_S: Final = 120.0
"""How long one may take, in seconds, and of processor time, too, so that it ends where its starter was killed."""
INFLATED: Final = 32 * 2**20
"""Bytes of a request: 300,000 tokens and their counts take 6 MB."""
SINGLE: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1: the other cores are the training's."""
BUSES: Final = ("OVEN_CREDS", "OVEN_URL")
"""What it is not handed: it has nothing to say on the bus."""


@dataclass(frozen=True, slots=True)
class Graphs:
    """Where the graphs are that a service answers from."""

    file: Path | None = None
    """None: the built-in one."""
    large: Path | None = None
    """The folder of the large one, if there is one."""


BUILT_IN: Final = Graphs()


async def answer(request: bytes, graphs: Graphs, *, compressed: bool, limit_s: float = LIMIT_S) -> bytes:
    """The TokenPrior of a TokenPriorRequest, both as they are on the bus. Raises ConfigError where the request cannot
    be answered, or not in `limit_s`."""
    named = [str(graphs.file or ""), str(graphs.large or "")]
    command = [sys.executable, "-P", "-m", __name__, "compressed" if compressed else "plain", *named]
    environment = {key: value for key, value in os.environ.items() if key not in BUSES} | dict.fromkeys(SINGLE, "1")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            said, complained = await process.communicate(request)
    except TimeoutError:
        raise ConfigError(
            f"the scores took longer than {limit_s:g} s; ask when a core is free, or with fewer tokens or nodes"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return said
    last = (complained.decode(errors="replace").strip().splitlines() or [""])[-1]
    raise ConfigError(
        last.removeprefix("error: ")
        if last.startswith("error: ")
        else f"the process of the scores ended with code {process.returncode}: {last[:200]}"
    )


def inflated(data: bytes) -> bytes:
    """What was compressed. Raises ConfigError for what is not zlib's, is cut off, or has more than INFLATED bytes."""
    machine = zlib.decompressobj()
    try:
        found = machine.decompress(data, INFLATED)
    except zlib.error as error:
        raise ConfigError(f"the parts together are not compressed with zlib ({error}); send them anew") from None
    if machine.unconsumed_tail:
        raise ConfigError(f"the request has more than {INFLATED} bytes; send a smaller vocabulary")
    if not machine.eof:
        raise ConfigError("the parts together end within the request; send them anew")
    return found


def main(args: list[str]) -> int:
    """What the process does: a request on standard input, the answer on standard output."""
    from oven_kg.service.endpoints import answers

    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMIT_S), int(LIMIT_S) + 5))
    how, file, large = args
    try:
        request = sys.stdin.buffer.read()
        ask = answers(Path(file) if file else None, large=Path(large) if large else None)
        found = ask("token_prior", inflated(request) if how == "compressed" else request)
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.buffer.write(found or b"")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
