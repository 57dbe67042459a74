"""Who is told which key: keys.json, the pin, and what a learner does with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oven_controller.stack.process_plan import Plan
from oven_core.errors import ConfigError
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer, load_keys
from oven_learner.link.find_controller import Connection
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.server.embedded_server import ServerFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = Home(tmp_path).create("r", "toy")
    for role in ("admin", "learner", "mesh", "operator", "monitor"):
        made.add_user(role, role)
    made.add_user("operator", "ann")
    made.add_user("agent", "lr")
    return made


def test_only_signers_have_a_public_key(folder: RunFolder) -> None:
    path = folder.keys_file()
    assert path is not None
    keys = load_keys(path)
    creds = folder.server.creds
    assert keys == {name: Signer(Credentials.load(creds / f"{name}.nk")).public for name in keys}
    assert set(keys) == {"learner", "mesh", "operator", "ann"}
    assert {user.name for user in folder.server.users() if user.signing} == set(keys)


def test_every_process_gets_the_pin_and_the_learner_all_keys(folder: RunFolder) -> None:
    plan = Plan(folder, "nats://x")
    learner, mesh, agent = plan.learner().env, plan.mesh().env, plan.environment("agent", "lr")
    pins = {env["OVEN_LEARNER_KEY"] for env in (learner, mesh, agent, plan.script(["x"]).env)}
    assert pins == {folder.pin()} == {Signer(Credentials.load(Path(learner["OVEN_CREDS"]))).public}
    assert learner["OVEN_KEYS"] == str(folder.keys_file())
    assert "OVEN_KEYS" not in mesh | agent


def test_a_users_server_works_with_a_folder_of_keys(folder: RunFolder, tmp_path: Path) -> None:
    theirs = ServerFolder(tmp_path / "bus", "r")
    for role in ("learner", "mesh", "operator"):
        theirs.add_user(role, role)
    info = replace(folder.info(), embedded=False, creds=str(theirs.creds))
    folder.write_info(info)
    assert folder.keys_file() == theirs.creds / "keys.json"
    assert folder.pin() == Signer(Credentials.load(theirs.creds / "learner.nk")).public


@pytest.mark.parametrize("creds", ["", "one.nk"])
def test_one_key_for_all_or_none_is_not_signed(folder: RunFolder, tmp_path: Path, creds: str) -> None:
    if creds:
        Credentials.new("one").save(tmp_path)
        creds = str(tmp_path / creds)
    folder.write_info(replace(folder.info(), embedded=False, creds=creds))
    assert folder.keys_file() is None and folder.pin() is None
    env = Plan(folder, "nats://x").learner().env
    assert not {"OVEN_KEYS", "OVEN_LEARNER_KEY"} & set(env)


@pytest.mark.parametrize("text", ["[]", "{", '{"learner": "AAAA"}', '{"learner": 7}'])
def test_keys_that_are_damaged(folder: RunFolder, text: str) -> None:
    (folder.server.creds / "keys.json").write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.json must be a list of public keys"):
        folder.pin()


def test_the_learner_announces_the_keys_if_its_own_is_among_them(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Plan(folder, "nats://x").environment("learner").items():
        monkeypatch.setenv(name, value)
    assert Connection.find().keys == load_keys(folder.server.creds / "keys.json")
    monkeypatch.setenv("OVEN_CREDS", str(folder.server.creds / "mesh.nk"))
    with pytest.raises(ConfigError, match="does not match Credentials\\('mesh'\\)"):
        Connection.find()
    monkeypatch.setenv("OVEN_KEYS", str(folder.path / "nowhere.json"))
    with pytest.raises(ConfigError, match="cannot read the public keys"):
        Connection.find()
    monkeypatch.delenv("OVEN_KEYS")
    assert Connection.find().keys == {}
