"""A server over WebSocket: its package is imported where an address needs it, and not before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oven_runs.server.embedded_server import find_binary

CONNECT = """
import asyncio, sys
from oven_core.bus.connection import Bus
async def main():
    assert "aiohttp" not in sys.modules
    async with Bus.connect(sys.argv[1], name="test") as bus:
        await bus.flush()
asyncio.run(main())
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a nats-server that chose its ports itself."""
    config = tmp_path / "nats.conf"
    config.write_text('host: "127.0.0.1"\nport: -1\nwebsocket { host: "127.0.0.1", port: -1, no_tls: true }\n')
    with subprocess.Popen([find_binary(), "-c", str(config)], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            announcement = next(line for line in server.stderr if "websocket clients on" in line)
            yield announcement.split()[-1]
        finally:
            server.terminate()


def test_a_websocket_address_works(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, address], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
