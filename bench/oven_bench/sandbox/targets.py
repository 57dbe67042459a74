"""What an attack aims at: files, listeners, a process and secrets. The bench makes new ones for each attack."""

from __future__ import annotations

import contextlib
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oven_bench.sandbox.attack import Attack, Seen

FLOOD: int = 1_000_000
"""Characters above which the host received too much."""


class Targets:
    """A context around one attack. `reached` judges the attack before the targets are removed."""

    def __init__(self) -> None:
        self.file_secret, self.memory_secret, self.environment_secret = (secrets.token_hex(16) for _ in range(3))
        self.knock = secrets.token_hex(16)
        self._received = bytearray()
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="oven-targets-")))
        folder.chmod(0o755)
        self._secret, self._marker = folder / "secret.txt", folder / "marker"
        self._secret.write_text(self.file_secret)
        self._victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        self._tcp = self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self._udp = self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self._unix = self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream.sock"))
        self._datagram = self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram.sock"))
        self._abstract = f"oven-{self.knock[:8]}"
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self._abstract)
        self.facts: dict[str, Any] = {
            "secret_file": str(self._secret),
            "folder": str(folder),
            "marker": str(self._marker),
            "knock": self.knock,
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "unix": str(folder / "stream.sock"),
            "datagram": str(folder / "datagram.sock"),
            "abstract": self._abstract,
            "victim": self._victim.pid,
            "python": sys.executable,
            "machine": platform.machine(),
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._victim.kill()
        self._victim.wait()
        self._exits.close()

    def _listen(self, family: int, kind: int, address: Any) -> socket.socket:
        """Listen in a thread and keep what arrives."""
        listener = socket.socket(family, kind)
        self._exits.callback(listener.close)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(8)

        def hear() -> None:
            with contextlib.suppress(OSError):
                while True:
                    if kind == socket.SOCK_DGRAM:
                        self._received += listener.recv(4096)
                        continue
                    with listener.accept()[0] as peer:
                        peer.settimeout(1)
                        self._received += peer.recv(4096)

        threading.Thread(target=hear, daemon=True).start()
        self._exits.callback(lambda: _wake(listener))
        return listener

    def reached(self, attack: Attack, seen: Seen) -> bool:
        """Whether the attack reached its goal."""
        match attack.goal:
            case "secret":
                return any(
                    secret in seen.output for secret in (self.file_secret, self.memory_secret, self.environment_secret)
                )
            case "marker":
                return self._marker.exists() or self._marker.is_symlink()
            case "knock":
                return self._hears()
            case "victim":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._victim.wait(timeout=0.2)
                return self._victim.poll() is not None
            case "hang":
                return not seen.in_time
            case "held":
                return any(line.split()[:1] == ["HELD"] for line in seen.output.splitlines())
            case "flood":
                return seen.received > FLOOD
            case "answer":
                return not seen.answered
            case "host":
                return not seen.serving
            case "damage":
                return (
                    not self._secret.exists()
                    or self._secret.read_text() != self.file_secret
                    or bool(self._secret.stat().st_mode & 0o111)
                )

    def _hears(self) -> bool:
        """Whether a listener has the message. Waits a moment for one that is still on its way."""
        waiting = threading.Event()
        for _ in range(10):
            if self.knock.encode() in self._received:
                return True
            waiting.wait(0.02)
        return False


def _wake(listener: socket.socket) -> None:
    """End the thread that waits for this listener."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
