"""The command class of `up`. It adds one option per setting of the chosen recipe, and lists all starts in its help."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from typer.core import TyperCommand
from typer.main import get_command

from oven_core.errors import OvenError
from oven_core.plugins import find_plugins, load
from oven_runs.home.run_folder import Home
from oven_runs.settings.layers import Layer
from oven_runs.settings.recipe_flags import flag, flag_layers, is_switch, with_dashes
from oven_runs.settings.resolution import selected_recipe

_VALUES_KEY = "oven.recipe_options"
"""Key in Click's context for the values of the recipe options on the command line."""
_MODEL_KEY, _OPTIONS_KEY = "oven.recipe_model", "oven.recipe_settings"
"""Keys in Click's context for the recipe's settings model, and for the options made from it."""


class RecipeCommand(TyperCommand):
    """A command that accepts recipe settings as options, with dashes or underscores, and lists them in its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = with_dashes(args)
        help_requested = "-h" in args or "--help" in args
        recipe = _find_recipe(self._parse_own_options(ctx, args), help_requested=help_requested)
        if recipe is not None:
            name, model = recipe
            own_names: set[str | None] = {param.name for param in self.params}
            ctx.meta[_MODEL_KEY] = model
            ctx.meta[_OPTIONS_KEY] = _make_options(name, model, own_names)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *ctx.meta.get(_OPTIONS_KEY, ())]

    def invoke(self, ctx: Any) -> Any:
        names = [option.name for option in ctx.meta.get(_OPTIONS_KEY, ())]
        values = {name: ctx.params.pop(name) for name in names}
        ctx.meta[_VALUES_KEY] = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table

        for recipe, faults in list_starts().items():
            table = Table(box=None, show_header=False)
            for start, fault in faults.items():
                table.add_row(start, fault)
            Console().print(
                Panel(
                    table,
                    title=f"Starts of the recipe {recipe}, and what is wrong",
                    title_align="left",
                    border_style="dim",
                )
            )

    def _parse_own_options(self, ctx: Any, args: list[str]) -> dict[str, Any]:
        """Return the values of the command's own options in `args`. Ignore errors, which Typer reports later."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        was_resilient = ctx.resilient_parsing
        ctx.resilient_parsing = True
        try:
            values, _, _ = parser.parse_args(args=list(args))
        finally:
            ctx.resilient_parsing = was_resilient
        return dict(values)


def list_starts() -> dict[str, dict[str, str]]:
    """Return the starts of every installed recipe, with what is wrong with each. The default is marked."""
    starts = {}
    for name in find_plugins("recipes"):
        try:
            recipe = load("recipes", "recipe", name)
        except OvenError:
            continue  # a package is missing, which must not hide the rest of the help
        marks = {recipe.default_start: " (default)"}
        starts[name] = {text + marks.get(text, ""): fault or "nothing" for text, fault in recipe.starts.items()}
    return starts


def recipe_layers(ctx: typer.Context) -> list[Layer]:
    """Return one layer of settings per recipe option on the command line."""
    values: Mapping[str, str | bool] = ctx.meta.get(_VALUES_KEY, {})
    return flag_layers(ctx.meta[_MODEL_KEY], values) if values else []


def _find_recipe(own_values: Mapping[str, Any], *, help_requested: bool) -> tuple[str, type[BaseModel]] | None:
    """Return the recipe's name and settings model, or None if the user runs their own training script. Errors are
    ignored if the stack starts no learner, or if help is requested, so that the help is still shown."""
    try:
        earlier = Home().find(own_values.get("run")).earlier_settings() if own_values.get("resume") else None
        return selected_recipe(
            recipe=own_values.get("recipe"),
            config=Path(own_values["config"]) if own_values.get("config") else None,
            sets=own_values.get("overrides") or (),
            environ=os.environ,
            earlier_settings=earlier,
        )
    except OvenError:
        if help_requested or own_values.get("no_learner"):
            return None
        raise


def _make_options(recipe: str, model: type[BaseModel], own_names: set[str | None]) -> list[Any]:
    """Return one option per setting of the recipe, without the settings whose names are in `own_names`."""
    parameters = []
    for name, field in model.model_fields.items():
        if name in own_names:
            continue
        attributes: dict[str, Any] = {
            "help": _help_text(field.description or "", field.get_default(call_default_factory=True)),
            "rich_help_panel": f"Settings of the recipe {recipe}",
            "show_default": False,
        }
        value_type: Any
        if is_switch(field):
            value_type, flags = bool, f"{flag(name)}/{flag('no_' + name)}"
        else:
            value_type, flags = str, flag(name)
            attributes["metavar"] = "VALUE"
        annotation = Annotated[value_type | None, typer.Option(flags, **attributes)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    # Typer derives options from the signature of a function, so this function gets one parameter per setting.
    def settings(**_: Any) -> None: ...

    settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    settings.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    command: Any = get_command(app)
    return list(command.params)


def _help_text(description: str, default: Any) -> str:
    """Return a setting's description and its default as a user would type it, e.g. `25,50,75` for a list."""
    sentence = description[:1].upper() + description[1:]
    if default is None:
        return sentence
    default_text = ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
    return f"{sentence} (default {default_text})".strip()
