"""`up --help` lists the starts of every recipe."""

import subprocess
import sys
from pathlib import Path

from oven_controller.cli.recipe_options import list_starts
from oven_core.plugins import find_plugins, load


def test_every_start_of_every_recipe_is_listed_with_what_is_wrong() -> None:
    listed = list_starts()
    for name in find_plugins("recipes"):
        recipe = load("recipes", "recipe", name)
        for text, fault in recipe.starts.items():
            start = recipe.parse_start(text, 0, recipe.settings_model())
            mark = " (default)" if text == recipe.default_start else ""
            assert listed[name][text + mark] == (fault or "nothing")
            assert start.name == text
            assert start.label in ("", fault)
            assert bool(start.label) == (text.startswith("drill:") or text == "tour")


def output(*command: str) -> str:
    return subprocess.run([*command], capture_output=True, text=True, check=True).stdout


def test_help_lists_starts_without_importing_torch() -> None:
    assert "drill:gamed-rule" in output(str(Path(sys.executable).with_name("oven-controller")), "up", "--help")
    code = "import sys; from oven_controller.cli.recipe_options import list_starts; list_starts(); print(*sys.modules)"
    modules = output(sys.executable, "-c", code).split()
    assert "oven_recipes.grpo.settings" in modules
    assert not {"torch", "transformers"} & set(modules)
