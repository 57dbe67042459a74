"""The monitor in a browser of this machine: whom its server lets in, what the page asks for, and how both end."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tests.integration.conftest import wait_for
from tests.support.replayed import a_run, left_behind

from oven_runs.home.run_folder import Home, RunFolder

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
pytestmark = pytest.mark.e2e
LIMIT_S = 60


class Served:
    """`monitor --web` as a process of its own."""

    def __init__(self, folder: RunFolder) -> None:
        command = [sys.executable, "-m", "oven_controller.stack.run_process", "monitor", str(folder.path), "--web"]
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        self.process = subprocess.Popen(
            command, env=parent_env | {"PYTHONPATH": os.pathsep.join(sys.path)}, text=True, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.address = re.findall(r"http://\S+", self.process.stdout.readline())[0]
        self.base = self.address.partition("/?")[0]
        self.websocket = self.base.replace("http:", "ws:") + "/ws?width=100&height=30"

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(left_behind(Home(tmp_path / "home"), a_run()))
    yield made
    made.end()


async def test_only_authenticated_users_are_let_in_and_no_other_machine_is_contacted(served: Served) -> None:
    assert urlsplit(served.base).hostname == "127.0.0.1"
    everything = ("/", "/ws", "/page.css", "/static/js/textual.js", "/download/x", "/static/")
    refused: list[tuple[str, dict[str, str]]] = [(served.base + path, {}) for path in everything]
    refused += [(served.base + "/?token=" + wrong, {}) for wrong in ("", "x", "é")]
    refused += [
        (served.address, {"Host": host}) for host in ("evil.example", f"localhost:{urlsplit(served.base).port}")
    ]
    refused += [(served.address, {"Origin": "http://evil.example"})]
    async with (
        aiohttp.ClientSession() as stranger,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as person,
    ):
        for url, headers in refused:
            async with stranger.get(url, headers=headers) as answer:
                assert answer.status == 403, (url, headers)
        async with person.get(served.address) as opened:
            assert (opened.status, str(opened.url)) == (200, served.base + "/"), "the token is no longer in the address"
            page, policy = await opened.text(), opened.headers["Content-Security-Policy"]
            (cookie,) = opened.history[0].headers.getall("Set-Cookie")
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert policy.startswith("default-src 'none'") and "http" not in policy
        assert {urlsplit(url).netloc for url in re.findall(r"\w+://[^\"'\s]+", page)} == {urlsplit(served.base).netloc}
        for asset in re.findall(r'(?:href|src)="([^"d][^"]*)"', page):
            async with person.get(asset if "://" in asset else served.base + asset) as answer:
                assert answer.status == 200, asset
                text = (await answer.read()).decode(errors="replace")
                assert "url(http" not in text and "@import" not in text, asset
        async with person.get(served.address) as again, stranger.get(served.address) as elsewhere:
            assert (again.status, elsewhere.status) == (403, 403), "once"
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                await person.ws_connect(served.websocket, headers=headers)
            assert refusal.value.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await stranger.ws_connect(served.websocket)
        async with asyncio.timeout(LIMIT_S), person.ws_connect(served.websocket) as first:
            await first.send_str("no list")  # what no page of ours says ends that page alone
            while not first.closed:
                await first.receive()
        async with asyncio.timeout(LIMIT_S), person.ws_connect(served.websocket) as second:
            drawn = b""
            while b"completed" not in drawn:
                drawn += (await second.receive()).data
            await second.send_json(["stdin", "q"])
            while not second.closed:
                await second.receive()
    assert served.process.wait(LIMIT_S) == 0


async def test_the_drawing_process_ends_with_a_killed_server(served: Served) -> None:
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as person:
        await person.get(served.address)
        async with person.ws_connect(served.websocket) as page:
            assert (await page.receive()).type == aiohttp.WSMsgType.BINARY
            drawing = served.children()
            assert drawing
            served.process.kill()
    await asyncio.to_thread(wait_for, lambda: not any(map(_runs, drawing)), "it ends")


async def test_a_signal_ends_a_server_whose_monitor_is_stuck(served: Served) -> None:
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as person:
        await person.get(served.address)
        async with person.ws_connect(served.websocket) as page:
            assert (await page.receive()).type == aiohttp.WSMsgType.BINARY
            (drawing,) = served.children()
            drawing.suspend()
            served.process.terminate()
            await asyncio.to_thread(served.process.wait, LIMIT_S / 2)
    assert not _runs(drawing)


async def test_a_page_cannot_make_its_monitor_draw_a_billion_cells(served: Served) -> None:
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as person:
        await person.get(served.address)
        async with person.ws_connect(served.websocket, max_msg_size=0) as page:
            assert (await page.receive()).type == aiohttp.WSMsgType.BINARY
            await page.send_json(["resize", {"width": 30_000, "height": 30_000}])
            await page.send_json(["stdin", "q"])
            drawn = 0
            while not page.closed:
                message = await page.receive()
                drawn += len(message.data) if message.type == aiohttp.WSMsgType.BINARY else 0
    assert drawn < 50e6


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
