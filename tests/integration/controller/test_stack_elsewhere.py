"""`up` on a NATS server that somebody else runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.conftest import Stack

from oven_core.security.credentials import Credentials
from oven_runs.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.e2e


async def test_a_stack_uses_the_users_own_server(stack: Stack, server: EmbeddedServer) -> None:
    for name in ("curriculum", "learning_rate"):
        server.folder.add_user("agent", name)
    server.reload()
    there = ["--nats", server.url, "--creds", str(server.folder.creds), "--run", "r", "--recipe", "toy", "--headless"]
    code, output = stack.command("up", *there)
    assert code == 0, output
    assert stack.command("replay", "r")[0] == 0
    assert not (stack.run_folder("r").server.folder / "store").exists()

    (stack.run_folder("r").path).rename(stack.folder / "moved")  # the streams are still there
    for dry in ([], ["--dry-run"]):
        code, output = stack.command("up", *dry, *there)
        assert (code, "exists on this server; choose another name" in output) == (2, True), output


async def test_unknown_keys_are_refused_by_the_users_server(
    stack: Stack, server: EmbeddedServer, tmp_path: Path
) -> None:
    key = Credentials.new("stranger").save(tmp_path / "keys")
    there = ["--headless", "--recipe", "toy", "--nats", server.url, "--creds", str(key), "--run", "r"]
    for dry in ([], ["--dry-run"]):
        code, output = stack.command("up", *dry, *there)
        assert (code, "refused the credentials of 'stranger'; check --creds" in output) == (2, True), output
        assert "Traceback" not in output
    assert not stack.run_folder("r").path.exists()
