"""Run folders: names, the lock that says who runs, and a home that cannot be used."""

from __future__ import annotations

import os
from dataclasses import replace
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


def test_names_that_are_in_use_or_invalid_are_refused(home: Home) -> None:
    home.create("mine", "grpo")
    with pytest.raises(NameInUseError, match="--resume"):
        home.create("mine", "grpo")
    with pytest.raises(ConfigError, match="not a usable name"):
        home.create("my run", "grpo")


def test_an_unusable_home_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner", Path("/proc/oven")):
        with pytest.raises(ConfigError, match="set OVEN_HOME to a folder that you can write to"):
            Home(folder).create("mine", "grpo")


def test_a_process_id_on_disk_does_not_make_a_run_running(home: Home) -> None:
    folder = home.create("mine", "grpo")
    folder.write_info(replace(folder.info(), pid=os.getpid()))
    assert folder.status() == "interrupted"
    with folder.hold():
        assert folder.status() == "running"
        with pytest.raises(StoreInUseError, match="oven-controller down mine"), RunFolder(folder.path).hold():
            pass
    folder.write_info(replace(folder.info(), ended="completed"))
    assert folder.status() == "completed"


def test_find_returns_the_named_the_running_or_the_newest_run(home: Home) -> None:
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
        for running in (True, False):
            with new.hold(), pytest.raises(ConfigError, match="are running: new, old; name one of them"):
                home.find(None, running=running)


def test_keys_have_mode_0600_and_are_not_replaced(home: Home) -> None:
    folder = home.create("mine", "grpo")
    first = folder.add_user("agent", "lr")
    seed = first.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600
    assert folder.add_user("agent", "lr").read_bytes() == seed
    with pytest.raises(ConfigError, match="choose another name"):
        folder.add_user("monitor", "lr")


def test_keys_of_an_external_server_come_from_creds(home: Home, tmp_path: Path) -> None:
    folder = home.create("mine", "grpo")
    folder.write_info(replace(folder.info(), embedded=False))
    assert folder.credentials("agent", "lr") is None
    for path, key in ((tmp_path, tmp_path / "lr.nk"), (tmp_path / "all.nk", tmp_path / "all.nk")):
        folder.write_info(replace(folder.info(), creds=str(path)))
        assert folder.credentials("agent", "lr") == key


@pytest.mark.parametrize(
    "damage",
    [
        "[1]",
        "null",
        '{"run": "r"}',
        '{"run": "r", "created": "", "recipe": 1}',
        '{"run": "r", "created": "", "recipe": "x", "ended": "gone"}',
        '{"run": "r", "created": "", "recipe": "x", "children": {"mesh": "1"}}',
        "[" * 9999,
    ],
)
def test_a_run_json_with_wrong_content_is_an_error(home: Home, damage: str) -> None:
    folder = home.create("r", "grpo")
    (folder.path / "run.json").write_text(damage)
    with pytest.raises(ConfigError, match="cannot be read"):
        folder.info()
    assert home.runs() == []


def test_run_json_keeps_its_fields_and_ignores_those_of_later_versions(home: Home) -> None:
    folder = home.create("r", "grpo")
    info = replace(folder.info(), url="nats://é:1", port=1, children={"mesh": 7}, ended="failed", mirrored=True)
    folder.write_info(info)
    path = folder.path / "run.json"
    path.write_text(path.read_text().replace("{", '{"later": [1],', 1))
    assert folder.info() == info


def test_a_truncated_run_json_is_an_error(home: Home) -> None:
    folder = home.create("mine", "grpo")
    (folder.path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json cannot be read"):
        folder.info()
