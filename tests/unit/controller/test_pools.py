"""Agents that share a process: who is with whom, and what the key that they share may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_controller.stack.process_plan import Plan, make_pools
from oven_core.errors import ConfigError
from oven_core.protocol.permissions import permissions
from oven_core.security.credentials import Credentials
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded_server import ServerFolder
from oven_runs.settings.agents import AgentSpec


def specs(*names: str) -> list[AgentSpec]:
    return [AgentSpec(name, f"{name}.py") for name in names]


def test_installed_agents_share_a_process_and_files_do_not() -> None:
    installed = [AgentSpec(name, name) for name in ("lr", "curriculum")]
    agent_pools = make_pools([installed[0], *specs("mine"), installed[1]], None)
    assert [(pool.process_name, pool.names) for pool in agent_pools] == [
        ("agents-1", ("lr", "curriculum")),
        ("agent-mine", ("mine",)),
    ]
    alone = make_pools([installed[0], *specs("mine")], None)
    assert [(pool.process_name, pool.names) for pool in alone] == [("agent-lr", ("lr",)), ("agent-mine", ("mine",))]


def test_an_agent_cannot_have_the_name_of_a_key() -> None:
    with pytest.raises(ConfigError, match="agent 'agents-2' has the name of a shared agent process; rename its file"):
        make_pools(specs("a", "b", "agents-2"), 2)


def test_a_shared_key_is_limited_to_its_agents() -> None:
    allowed = permissions("agent", "agents-1", "r", ("a", "b"))
    assert allowed["publish"]["allow"] == [
        "oven.r.agent.a", "oven.r.agent.b", "oven.r.vote.a", "oven.r.vote.b", "oven.r.alert.a", "oven.r.alert.b",
        "oven.r.history", "oven.kg.*",
    ]  # fmt: skip
    assert "_INBOX_.agents-1.>" in allowed["subscribe"]["allow"]
    with pytest.raises(ConfigError, match=r"agent 'a\.>' is not a usable name"):
        permissions("agent", "agents-1", "r", ("a.>",))


def test_a_shared_key_stays_when_its_agents_change(tmp_path: Path) -> None:
    files = ServerFolder(tmp_path, "r")
    seed = files.add_user("agent", "agents-1", ("a", "b")).read_bytes()
    assert files.add_user("agent", "agents-1", ("a", "c")).read_bytes() == seed
    assert [user.agents for user in files.users()] == [("a", "c")]
    files.add_user("agent", "agents-1")
    assert [user.agents for user in files.users()] == [("a", "c")], "asking for the key changes nothing"


def test_a_process_with_several_agents_gets_their_shared_key(tmp_path: Path) -> None:
    folder = Home(tmp_path).create("r", "x")
    (pool,) = make_pools(specs("a", "b"), 2)
    folder.add_user("agent", pool.key, pool.names)
    service = Plan(folder, "nats://x").agents(pool)
    assert service.name == "agents-1" and service.command[-6:] == ("a.py", "b.py", "--name", "a", "--name", "b")
    assert Credentials.load(Path(service.env["OVEN_CREDS"])).name == "agents-1"
    assert [user.agents for user in folder.server.users()] == [("a", "b")]
