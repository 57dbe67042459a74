"""An HTTP server for webhooks on this machine, with replies set by a bench or a test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LIMIT_S = 60


@dataclass(frozen=True)
class Posted:
    """A received request."""

    received_at: float
    """Seconds since 1970."""
    path: str
    headers: dict[str, str] = field(repr=False)
    """By their names in small letters."""
    body: bytes = field(repr=False)
    accepted: bool = True
    """Whether it was answered with a status below 300."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """The reply to requests. `hangs`: no reply until the server is closed or the reply is changed."""

    status: int = 204
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False


class WebhookServer:
    """Listens while the context lasts. `posted` has every request; `reply` may be changed meanwhile."""

    def __init__(self, reply: Reply | None = None, port: int = 0) -> None:
        """Create the server. `port` 0: a free one."""
        self.reply = reply or Reply()
        self.posted: list[Posted] = []
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def until(self, true: Callable[[list[Posted]], Any], what: str) -> list[Posted]:
        """Return all requests once the condition holds for them. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: true(self.posted), LIMIT_S):
                raise TimeoutError(f"never {what}: {[(post.path, post.body[:300]) for post in self.posted]}")
            return list(self.posted)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = outer.reply
                headers = {name.lower(): value for name, value in self.headers.items()}
                accepted = reply.status < 300 and not reply.hangs
                with outer._news:
                    outer.posted.append(Posted(time.time(), self.path, headers, body, accepted))
                    outer._news.notify_all()
                if reply.hangs:
                    outer._closing.wait()
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_: object) -> None: ...

        return Handler
