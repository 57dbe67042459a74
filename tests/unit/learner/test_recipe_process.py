"""The learner process of a recipe."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from oven_core.errors import ConfigError
from oven_recipes import main as learner_process


class NeedsPackage:
    def load_training(self) -> None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")


def test_a_missing_package_of_a_recipe_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "mine"}))
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    recipe = EntryPoint("mine", f"{__name__}:NeedsPackage", "oven.recipes")
    monkeypatch.setattr(EntryPoint, "load", lambda _self: NeedsPackage())
    monkeypatch.setattr(learner_process, "entry_points", lambda group: [recipe])
    with pytest.raises(ConfigError, match=r"'mine' needs the package 'transformers'.*oven-controller\[recipes\]"):
        learner_process.main([])
