"""Run folders: names, the lock that says who runs, and a home that cannot be used."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from oven_core.errors import ConfigError, NameInUseError, StoreInUseError, UnknownNameError
from oven_runs.home.run_folder import Home, RunFolder

AT = datetime(2026, 11, 21, 2, 31)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_default_names_are_short_and_unique(home: Home) -> None:
    assert [home.create(None, "grpo", AT).run for _ in range(3)] == [
        "grpo-1121-0231",
        "grpo-1121-0231-2",
        "grpo-1121-0231-3",
    ]


def test_a_name_in_use_and_one_that_cannot_be(home: Home) -> None:
    home.create("mine", "grpo")
    with pytest.raises(NameInUseError, match="--resume"):
        home.create("mine", "grpo")
    with pytest.raises(ConfigError, match="not a usable name"):
        home.create("my run", "grpo")


def test_the_home_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "there"))
    assert Home().path == tmp_path / "there"
    monkeypatch.delenv("OVEN_HOME")
    monkeypatch.chdir(tmp_path)
    assert Home().path == tmp_path / ".oven"


def test_a_home_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "inner", Path("/proc/oven")):
        with pytest.raises(ConfigError, match="set OVEN_HOME to a folder that you can write to"):
            Home(place).create("mine", "grpo")


def test_a_stale_pid_is_not_believed(home: Home) -> None:
    folder = home.create("mine", "grpo")
    folder.write_info(folder.info().model_copy(update={"pid": os.getpid()}))
    assert folder.status() == "interrupted"
    with folder.hold():
        assert folder.status() == "running"
        with pytest.raises(StoreInUseError, match="oven-controller down mine"), RunFolder(folder.path).hold():
            pass
    folder.write_info(folder.info().model_copy(update={"ended": "completed"}))
    assert folder.status() == "completed"


def test_which_run_is_meant(home: Home) -> None:
    with pytest.raises(ConfigError, match="there are no runs"):
        home.find(None)
    old, new = home.create("old", "grpo"), home.create("new", "grpo")
    assert home.find(None).run == "new"
    assert home.find("old").run == "old"
    with pytest.raises(UnknownNameError, match="did you mean 'old'"):
        home.find("odl")
    with pytest.raises(ConfigError, match="no run is running"):
        home.find(None, running=True)
    with pytest.raises(ConfigError, match=r"'new' is not running \(interrupted\)"):
        home.find("new", running=True)
    with old.hold():
        assert home.find(None).run == "old"
        assert home.find(None, running=True).run == "old"
        with new.hold(), pytest.raises(ConfigError, match="name one of them"):
            home.find(None, running=True)


def test_keys_are_for_their_owner_only_and_kept(home: Home) -> None:
    folder = home.create("mine", "grpo")
    first = folder.add_user("agent", "lr")
    seed = first.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600
    assert folder.add_user("agent", "lr").read_bytes() == seed
    with pytest.raises(ConfigError, match="choose another name"):
        folder.add_user("monitor", "lr")


def test_keys_for_a_server_that_is_not_ours(home: Home, tmp_path: Path) -> None:
    folder = home.create("mine", "grpo")
    folder.write_info(folder.info().model_copy(update={"embedded": False}))
    assert folder.credentials("agent", "lr") is None
    for given, key in ((tmp_path, tmp_path / "lr.nk"), (tmp_path / "all.nk", tmp_path / "all.nk")):
        folder.write_info(folder.info().model_copy(update={"creds": str(given)}))
        assert folder.credentials("agent", "lr") == key


def test_an_info_that_was_cut(home: Home) -> None:
    folder = home.create("mine", "grpo")
    (folder.path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json cannot be read"):
        folder.info()
