"""The monitor in a browser on this machine: textual-serve behind a one-time token, on loopback only.

The first browser that opens the address with its token gets a cookie, and the token becomes void. Without that cookie
every request is refused. So is a request for another host name (a page elsewhere whose name was made to point to this
machine), and a WebSocket that another page opens. The page loads everything from this server and asks no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from aiohttp import WSCloseCode, web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from oven_core.cancellation import on_termination
from oven_core.errors import ConfigError

HOST: Final = "127.0.0.1"
"""The only address that it listens on. There is no option for another."""
PAGE: Final = Path(__file__).with_name("web")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self' {websocket}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Keeps the browser from asking any other machine, whatever the page contains. The terminal styles its cells inline."""
QUIT_S: Final = 2.0
"""Time for a monitor to quit before it is killed, and for its page to confirm that it closes."""
MAX_CELLS: Final = 1000
"""Maximum width and height of a page. A monitor's memory grows with the number of cells."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Drawing(AppService):
    """The process that draws one page. Its size is bounded, and it ends even if it is stuck."""

    async def set_terminal_size(self, width: object, height: object) -> None:
        await super().set_terminal_size(_cells(width, 80), _cells(height, 24))

    async def stop(self) -> None:
        """Ask the process to quit, and kill it if it does not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIT_S):
                await super().stop()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class MonitorServer(Server):
    """textual-serve's server with access checks. `ended` is set when the monitor in the browser quits."""

    def __init__(self, command: Sequence[str], port: int, title: str) -> None:
        """`command` draws the monitor: one process per open page."""
        super().__init__(
            "exec " + shlex.join(command),
            host=HOST,
            port=port,
            title=title,
            public_url=f"http://{HOST}:{port}",
            templates_path=PAGE,
        )
        self.token = secrets.token_urlsafe(32)
        """Opens the monitor once; empty after its use."""
        self.ended = asyncio.Event()
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"oven-monitor-{port}"
        self._pages: dict[web.WebSocketResponse, _Drawing] = {}

    @property
    def address(self) -> str:
        """The address to open once, in a browser on this machine."""
        return f"{self.public_url}/?token={self.token}"

    async def application(self) -> web.Application:
        made = await self._make_app()
        made.middlewares.append(self._guarded)
        made.on_response_prepare.append(self._protect)
        made.router.add_get("/page.css", self._style)
        return made

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: the caller says where the server is."""

    async def on_shutdown(self, app: web.Application) -> None:
        pages = dict(self._pages)
        await asyncio.gather(*(drawing.stop() for drawing in pages.values()))
        closing = (page.close(code=WSCloseCode.GOING_AWAY, message=b"the monitor ended") for page in pages)
        await asyncio.gather(*closing, return_exceptions=True)

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """Return the page. The token is exchanged for a cookie, so that the address in the history opens nothing."""
        if (token := request.query.get("token")) is not None:
            if not self.token or not _same(token, self.token):
                raise web.HTTPForbidden(text="This address was used already, or is wrong: open the monitor anew.\n")
            self.token = ""
            opened = web.HTTPSeeOther("/")
            opened.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
            raise opened
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one open page: a monitor as its child, which ends with it."""
        websocket = web.WebSocketResponse(heartbeat=15, timeout=QUIT_S)
        await websocket.prepare(request)

        async def quit_by_key() -> None:
            if not websocket.closed:  # else the page was closed, or loaded again, and the monitor with it
                await websocket.close()
                self.ended.set()

        drawing = self._pages[websocket] = _Drawing(
            self.command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=quit_by_key,
            download_manager=self.download_manager,
        )
        try:
            await drawing.start(_cells(request.query.get("width"), 80), _cells(request.query.get("height"), 24))
            await self._process_messages(websocket, drawing)
        except (ValueError, KeyError, TypeError, AssertionError, IndexError, AttributeError):
            await websocket.close(code=WSCloseCode.UNSUPPORTED_DATA)  # what is not a message of the page's
        finally:
            del self._pages[websocket]
            await drawing.stop()
        return websocket

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host != f"{HOST}:{self.port}":
            raise web.HTTPForbidden(text="This monitor is for browsers of its own machine.\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.host}":
            raise web.HTTPForbidden(text="Another page has no business here.\n")
        opening = request.path == "/" and "token" in request.query
        if not opening and not _same(request.cookies.get(self._cookie, ""), self._session):
            raise web.HTTPForbidden(text="Open the monitor by the address that it printed.\n")
        return await handler(request)

    async def _protect(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = POLICY.format(websocket=f"ws://{request.host}")
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"

    async def _style(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE / "page.css")


def _same(candidate: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(candidate.encode(errors="replace"), secret.encode())


def _cells(size: object, default: int) -> int:
    """Return a page's width or height in cells, within the limits."""
    text = str(size)
    return min(MAX_CELLS, max(1, int(text))) if text.isdecimal() and len(text) < 6 else default


def serve(arguments: Sequence[str], run: str, port: int) -> None:
    """Serve until the monitor in the browser quits, or a signal. `arguments` are those of the process `monitor`; `port`
    0 takes a free one. Raises ConfigError for a port that is in use."""
    logging.getLogger("textual-serve").setLevel(logging.ERROR)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} on {HOST} cannot be used ({getattr(error, 'strerror', None) or error}); choose another "
                "with --port, or leave it out for a free one"
            ) from error
        command = (sys.executable, "-P", "-m", "oven_controller.stack.entry", "monitor", *arguments)
        asyncio.run(_served(MonitorServer(command, listening.getsockname()[1], f"run {run}"), listening))


async def _served(server: MonitorServer, listening: socket.socket) -> None:
    on_termination(server.ended.set, signal.SIGHUP)
    runner = web.AppRunner(await server.application(), access_log=None, shutdown_timeout=1)  # addresses hold the token
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        print(f"open it once, in a browser of this machine: {server.address}", flush=True)
        print("q in the monitor, or Ctrl-C here, ends it; the run continues", flush=True)
        await server.ended.wait()
    finally:
        await runner.cleanup()
