"""Computes token scores in a child process, one per request. `answer` starts it, and `main` is the code that it runs.

A thread is not enough, because matching a graph's names against a large vocabulary holds the GIL for seconds, while
agents expect a diagnosis within 250 ms. A process can also be killed when it takes too long, and all of its memory is
freed at the end.
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
"""Time limit in seconds. It also limits CPU time, so that the child process ends even if its parent was killed."""
MAX_REQUEST_BYTES: Final = 32 * 2**20
"""Maximum decompressed size of a request. 300,000 tokens and their counts take 6 MB."""
THREAD_VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that are set to 1, because training uses the other cores."""
BUS_VARIABLES: Final = ("OVEN_CREDS", "OVEN_URL")
"""Environment variables that the child process does not get, because it does not use the bus."""


@dataclass(frozen=True, slots=True)
class GraphPaths:
    file: Path | None = None
    """The graph file, or None for the built-in graph."""
    large: Path | None = None
    """The folder of the large graph, or None if there is no large graph."""


BUILT_IN: Final = GraphPaths()


async def answer(request: bytes, paths: GraphPaths, *, compressed: bool, limit_s: float = LIMIT_S) -> bytes:
    """Return the answer to a TokenPriorRequest, both encoded as on the bus. A `compressed` request is zlib data."""
    args = ["compressed" if compressed else "plain", str(paths.file or ""), str(paths.large or "")]
    environment = {key: value for key, value in os.environ.items() if key not in BUS_VARIABLES}
    environment |= dict.fromkeys(THREAD_VARIABLES, "1")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, *args, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(limit_s):
            output, errors = await process.communicate(request)
    except TimeoutError:
        raise ConfigError(
            f"computing the scores took longer than {limit_s:g} s; try again later, or with fewer tokens or nodes"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return output
    last_line = (errors.decode(errors="replace").strip().splitlines() or [""])[-1]
    if last_line.startswith("error: "):
        raise ConfigError(last_line.removeprefix("error: "))
    raise ConfigError(
        f"the process that computes the scores failed with exit code {process.returncode}: {last_line[:200]}"
    )


def decompress(data: bytes) -> bytes:
    """Decompress with zlib. Raises ConfigError for damaged data and for more than MAX_REQUEST_BYTES."""
    decompressor = zlib.decompressobj()
    try:
        request = decompressor.decompress(data, MAX_REQUEST_BYTES)
    except zlib.error as error:
        raise ConfigError(f"the uploaded parts are not compressed with zlib ({error}); send them again") from None
    if decompressor.unconsumed_tail:
        raise ConfigError(f"the request has more than {MAX_REQUEST_BYTES} bytes; send a smaller vocabulary")
    if not decompressor.eof:
        raise ConfigError("the uploaded request is truncated; send all parts again")
    return request


def main(args: list[str]) -> int:
    """Run the child process: read a request from standard input, and write the answer to standard output."""
    from oven_kg.service.endpoints import load_prior_service

    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMIT_S), int(LIMIT_S) + 5))
    encoding, file, large = args
    try:
        request = sys.stdin.buffer.read()
        prior = load_prior_service(Path(file) if file else None, large=Path(large) if large else None)
        reply = prior("token_prior", decompress(request) if encoding == "compressed" else request)
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.buffer.write(reply or b"")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
