"""What a shipped agent is called: entry point, module and class agree, and an earlier name leads to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.installed import entry_points, installed

from oven_agents.runtime.agent_loader import find_factory, load
from oven_controller.cli.main import run
from oven_core.errors import RENAMED, UnknownNameError
from oven_runs.settings.agent_options import HEADINGS, docstring_sections

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]
SHIPPED = entry_points()["oven.agents"]


@pytest.mark.parametrize("name", SHIPPED)
def test_an_agents_class_has_its_name(name: str) -> None:
    assert SHIPPED[name].rpartition(":")[2] == "".join(part.capitalize() for part in name.split("_"))


@pytest.mark.parametrize("name", SHIPPED)
def test_its_docstring_has_the_four_headings_in_their_order(name: str) -> None:
    made, _ = find_factory(name)
    assert isinstance(made, type)
    texts = docstring_sections(made)
    assert tuple(texts) == HEADINGS
    assert all(texts.values())


@pytest.mark.parametrize(("old", "new"), RENAMED["agent"].items())
def test_an_earlier_name_is_refused_with_the_one_of_today(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new in SHIPPED
    assert old not in SHIPPED
    words = f"no agent named {old!r}; did you mean {new!r}?"
    with pytest.raises(UnknownNameError) as refused:
        load(old)
    assert str(refused.value) == words
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    for args in (["agent", "run", old], ["agent", "list", old], ["up", "--dry-run", "--set", f"agents=[{old}]"]):
        with pytest.raises(SystemExit) as ended:
            run(args)
        assert ended.value.code == 2
        assert words in " ".join(capsys.readouterr().err.split())
