"""The command class of `up`. It adds one option per setting of the chosen recipe, and lists all starts in its help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from oven_core.errors import OvenError
from oven_core.plugins import find_plugins, load
from oven_runs.home.run_folder import Home
from oven_runs.settings.layers import Layer
from oven_runs.settings.recipe_flags import flag, flag_layers, is_switch, with_dashes
from oven_runs.settings.resolution import selected_recipe

_VALUES_KEY = "oven.recipe_options"
"""Key in click's context for the values of the recipe options on the command line."""
_RECIPE_KEY, _OPTIONS_KEY = "oven.recipe", "oven.recipe_settings"
"""Keys in click's context for the recipe's name and settings model, and for the options made from that model."""


class RecipeCommand(click.Command):
    """A command that accepts recipe settings as options, with dashes or underscores, and lists them in its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = with_dashes(args)
        help_requested = "-h" in args or "--help" in args
        recipe = _find_recipe(self._parse_own_options(ctx, args), help_requested=help_requested)
        if recipe is not None:
            _, model = ctx.meta[_RECIPE_KEY] = recipe
            ctx.meta[_OPTIONS_KEY] = _make_options(model, {param.name for param in self.params})
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_OPTIONS_KEY, ())]

    def invoke(self, ctx: click.Context) -> Any:
        names = [option.name for option in ctx.meta.get(_OPTIONS_KEY, ())]
        values = {name: ctx.params.pop(name) for name in names}
        ctx.meta[_VALUES_KEY] = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {"Options": super().get_params(ctx)}
        if _RECIPE_KEY in ctx.meta:
            sections[f"Settings of the recipe {ctx.meta[_RECIPE_KEY][0]}"] = ctx.meta[_OPTIONS_KEY]
        for title, params in sections.items():
            with formatter.section(title):
                formatter.write_dl([record for param in params if (record := param.get_help_record(ctx))])
        for recipe, faults in list_starts().items():
            with formatter.section(f"Starts of the recipe {recipe}, and what is wrong"):
                formatter.write_dl(list(faults.items()))

    def _parse_own_options(self, ctx: click.Context, args: list[str]) -> dict[str, Any]:
        """Return the values of the command's own options in `args`. Ignore errors, which click reports later."""
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


def recipe_layers(ctx: click.Context) -> list[Layer]:
    """Return one layer of settings per recipe option on the command line."""
    values: Mapping[str, str | bool] = ctx.meta.get(_VALUES_KEY, {})
    return flag_layers(ctx.meta[_RECIPE_KEY][1], values) if values else []


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


def _make_options(model: type[BaseModel], own_names: set[str | None]) -> list[click.Option]:
    """Return one option per setting of the recipe, without the settings whose names are in `own_names`."""
    options = []
    for name, field in model.model_fields.items():
        if name in own_names:
            continue
        help_ = _help_text(field.description or "", field.get_default(call_default_factory=True))
        if is_switch(field):
            options.append(click.Option([f"{flag(name)}/{flag('no_' + name)}", name], default=None, help=help_))
        else:
            options.append(click.Option([flag(name), name], metavar="VALUE", help=help_))
    return options


def _help_text(description: str, default: Any) -> str:
    """Return a setting's description and its default as a user would type it, e.g. `25,50,75` for a list."""
    sentence = description[:1].upper() + description[1:]
    if default is None:
        return sentence
    default_text = ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
    return f"{sentence} (default {default_text})".strip()
