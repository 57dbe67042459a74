"""The command class of `up`, which adds one option per setting of the chosen recipe."""

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
from oven_runs.home.run_folder import Home
from oven_runs.settings.layers import Layer
from oven_runs.settings.recipe_flags import flag, flag_layers, is_switch, with_dashes
from oven_runs.settings.resolution import selected_recipe

RECIPE_VALUES = "oven.recipe_options"
"""Context key for the values of the recipe options on the command line."""
_MODEL, _OPTIONS = "oven.recipe_model", "oven.recipe_settings"
"""Context keys for the recipe's settings model and for the options made from the model."""


class RecipeCommand(TyperCommand):
    """A command that accepts recipe settings as options, with dashes or underscores, and lists them in its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = with_dashes(args)
        recipe = _chosen_recipe(self._own_values(ctx, args), help_requested=not {"-h", "--help"}.isdisjoint(args))
        if recipe is not None:
            name, model = recipe
            own_names: set[str | None] = {param.name for param in self.params}
            ctx.meta[_MODEL], ctx.meta[_OPTIONS] = model, _options(name, model, own_names)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *ctx.meta.get(_OPTIONS, ())]

    def invoke(self, ctx: Any) -> Any:
        names = [option.name for option in ctx.meta.get(_OPTIONS, ())]
        values = {name: ctx.params.pop(name) for name in names}
        ctx.meta[RECIPE_VALUES] = {name: value for name, value in values.items() if value is not None}
        return super().invoke(ctx)

    def _own_values(self, ctx: Any, args: list[str]) -> dict[str, Any]:
        """Return the values of the command's own options in `args`. Typer reports invalid options later."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        was_resilient = ctx.resilient_parsing
        ctx.resilient_parsing = True
        try:
            values, _, _ = parser.parse_args(args=list(args))
        finally:
            ctx.resilient_parsing = was_resilient
        return dict(values)


def recipe_layers(ctx: typer.Context) -> list[Layer]:
    """Return one layer of settings per recipe option on the command line."""
    values: Mapping[str, str | bool] = ctx.meta.get(RECIPE_VALUES, {})
    return flag_layers(ctx.meta[_MODEL], values) if values else []


def _chosen_recipe(own_values: Mapping[str, Any], *, help_requested: bool) -> tuple[str, type[BaseModel]] | None:
    """Return the recipe's name and settings model, or None if the user runs their own training script. If help is
    requested, return None instead of raising an OvenError, so that the help is still shown."""
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


def _options(recipe: str, model: type[BaseModel], own_names: set[str | None]) -> list[Any]:
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
        switch = is_switch(field)
        flags = f"{flag(name)}/{flag('no_' + name)}" if switch else flag(name)
        if not switch:
            attributes["metavar"] = "VALUE"
        kind: Any = bool if switch else str
        annotation = Annotated[kind | None, typer.Option(flags, **attributes)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def settings(**_: Any) -> None: ...  # Typer makes the options from the signature that it gets below

    settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    settings.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    command: Any = get_command(app)
    return list(command.params)


def _help_text(description: str, default: Any) -> str:
    """Return a setting's description and its default as a user would type it, e.g. `25,50,75` for a list."""
    default_text = ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
    sentence = description[:1].upper() + description[1:]
    return sentence if default is None else f"{sentence} (default {default_text})".strip()
