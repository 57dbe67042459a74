"""Serves the monitor to a browser on this machine, with textual-serve and a one-time token, on loopback only.

The first browser that opens the address with the token gets a cookie, and the token becomes invalid. Requests without
the cookie are refused. So are requests for another host name (DNS rebinding) and WebSockets that other pages open. The
page loads everything from this server.
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
"""The only address that the server listens on. There is no option for another address."""
PAGE_FOLDER: Final = Path(__file__).with_name("web")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self' {websocket}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy that forbids requests to other machines. The terminal needs inline styles for its cells."""
QUIT_S: Final = 2.0
"""Seconds for a monitor to quit before it is killed, and for its page to confirm that it is closing."""
MAX_CELLS: Final = 1000
"""Maximum width and height of a page. A monitor's memory grows with the number of cells."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _PageProcess(AppService):
    """The process that draws one page. Its terminal size is limited, and it is killed if it is stuck."""

    async def set_terminal_size(self, width: object, height: object) -> None:
        await super().set_terminal_size(_cells(width, 80), _cells(height, 24))

    async def stop(self) -> None:
        """Stop the process, and kill it if it does not quit in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIT_S):
                await super().stop()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class MonitorServer(Server):
    """textual-serve's server with access checks."""

    def __init__(self, command: Sequence[str], port: int, title: str) -> None:
        """`command` starts the process that draws the monitor. Each open page has its own process."""
        super().__init__(
            "exec " + shlex.join(command),
            host=HOST,
            port=port,
            title=title,
            public_url=f"http://{HOST}:{port}",
            templates_path=PAGE_FOLDER,
        )
        self.token = secrets.token_urlsafe(32)
        """Opens the monitor once. It is empty after its use."""
        self.has_quit = asyncio.Event()
        """Set when the monitor in the browser quits."""
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"oven-monitor-{port}"
        self._pages: dict[web.WebSocketResponse, _PageProcess] = {}

    @property
    def address(self) -> str:
        """Return the address to open in a browser on this machine. It works once."""
        return f"{self.public_url}/?token={self.token}"

    async def application(self) -> web.Application:
        app = await self._make_app()
        app.middlewares.append(self._check_access)
        app.on_response_prepare.append(self._add_security_headers)
        app.router.add_get("/page.css", self._serve_stylesheet)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing. The caller prints the address."""

    async def on_shutdown(self, app: web.Application) -> None:
        pages = dict(self._pages)
        await asyncio.gather(*(process.stop() for process in pages.values()))
        closing = (page.close(code=WSCloseCode.GOING_AWAY, message=b"the monitor quit") for page in pages)
        await asyncio.gather(*closing, return_exceptions=True)

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """Return the page. The token is exchanged for a cookie, so the address in the browser's history is useless."""
        if (token := request.query.get("token")) is not None:
            if not self.token or not _is_secret(token, self.token):
                raise web.HTTPForbidden(
                    text="This address is wrong or has been used already. Start the monitor again for a new address.\n"
                )
            self.token = ""
            redirect = web.HTTPSeeOther("/")
            redirect.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
            raise redirect
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one open page with a new monitor process, which ends with the page."""
        websocket = web.WebSocketResponse(heartbeat=15, timeout=QUIT_S)
        await websocket.prepare(request)

        async def quit_by_key() -> None:
            if not websocket.closed:  # the page was neither closed nor reloaded
                await websocket.close()
                self.has_quit.set()

        process = self._pages[websocket] = _PageProcess(
            self.command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=quit_by_key,
            download_manager=self.download_manager,
        )
        try:
            await process.start(_cells(request.query.get("width"), 80), _cells(request.query.get("height"), 24))
            await self._process_messages(websocket, process)
        except (ValueError, KeyError, TypeError, AssertionError, IndexError, AttributeError):
            await websocket.close(code=WSCloseCode.UNSUPPORTED_DATA)  # the message does not come from our page
        finally:
            del self._pages[websocket]
            await process.stop()
        return websocket

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host != f"{HOST}:{self.port}":
            raise web.HTTPForbidden(text="This monitor is only available to browsers on its own machine.\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.host}":
            raise web.HTTPForbidden(text="Requests from other pages are not allowed.\n")
        has_token = request.path == "/" and "token" in request.query
        if not has_token and not _is_secret(request.cookies.get(self._cookie, ""), self._session):
            raise web.HTTPForbidden(text="Open the monitor with the address that it printed.\n")
        return await handler(request)

    async def _add_security_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = POLICY.format(websocket=f"ws://{request.host}")
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"

    async def _serve_stylesheet(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(PAGE_FOLDER / "page.css")


def _is_secret(candidate: str, secret: str) -> bool:
    """Compare in constant time, so that the time does not reveal the secret."""
    return hmac.compare_digest(candidate.encode(errors="replace"), secret.encode())


def _cells(size: object, default: int) -> int:
    """Return a page's width or height in cells, within the limits."""
    text = str(size)
    return min(MAX_CELLS, max(1, int(text))) if text.isdecimal() and len(text) < 6 else default


def serve(arguments: Sequence[str], run: str, port: int) -> None:
    """Serve until the monitor in the browser quits, or until a signal. `arguments` are passed to the process `monitor`.
    Port 0 selects a free port. Raises ConfigError if the port is in use."""
    logging.getLogger("textual-serve").setLevel(logging.ERROR)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on port {port} of {HOST} ({getattr(error, 'strerror', None) or error}); choose another "
                "with --port, or omit the option to use a free one"
            ) from error
        command = (sys.executable, "-P", "-m", "oven_controller.stack.run_process", "monitor", *arguments)
        asyncio.run(_serve(MonitorServer(command, listener.getsockname()[1], f"run {run}"), listener))


async def _serve(server: MonitorServer, listener: socket.socket) -> None:
    on_termination(server.has_quit.set, signal.SIGHUP)
    # No access log, because it would contain the token.
    runner = web.AppRunner(await server.application(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        print(f"open this address in a browser on this machine (it works once): {server.address}", flush=True)
        print("press q in the monitor or Ctrl-C here to stop it; the run continues", flush=True)
        await server.has_quit.wait()
    finally:
        await runner.cleanup()
