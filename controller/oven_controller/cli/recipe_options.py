"""The command `up` with one option more for each setting of the recipe that the command line or its layers name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

if TYPE_CHECKING:
    from pydantic import BaseModel

    from oven_runs.settings.layers import Layer

GIVEN = "oven.recipe_options"
"""Where the context keeps what was given of the recipe's options."""
_MODEL, _OPTIONS = "oven.recipe_model", "oven.recipe_settings"


class RecipeCommand(TyperCommand):
    """A command that takes the recipe's settings as options, with dashes or underscores, and lists them in its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from oven_runs.settings.recipe_flags import dashed

        args = dashed(args)
        found = _recipe_meant(self._own(ctx, args), asked_for_help={"-h", "--help"}.intersection(args) != set())
        if found is not None:
            name, model = found
            own: set[str | None] = {param.name for param in self.params}
            ctx.meta[_MODEL], ctx.meta[_OPTIONS] = model, _options(name, model, own)
        words: list[str] = super().parse_args(ctx, args)
        return words

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *ctx.meta.get(_OPTIONS, ())]

    def invoke(self, ctx: Any) -> Any:
        names = [option.name for option in ctx.meta.get(_OPTIONS, ())]
        given = {name: ctx.params.pop(name) for name in names}
        ctx.meta[GIVEN] = {name: value for name, value in given.items() if value is not None}
        return super().invoke(ctx)

    def _own(self, ctx: Any, args: list[str]) -> dict[str, Any]:
        """The command's own options in `args`, as far as they can be read; a wrong one is told of later."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        resilient, ctx.resilient_parsing = ctx.resilient_parsing, True
        try:
            given, _, _ = parser.parse_args(args=list(args))
        finally:
            ctx.resilient_parsing = resilient
        return dict(given)


def layers_given(ctx: typer.Context) -> list[Layer]:
    """A layer per option of the recipe that was given."""
    from oven_runs.settings.recipe_flags import flag_layers

    given: Mapping[str, str | bool] = ctx.meta.get(GIVEN, {})
    return flag_layers(ctx.meta[_MODEL], given) if given else []


def _recipe_meant(own: Mapping[str, Any], *, asked_for_help: bool) -> tuple[str, type[BaseModel]] | None:
    """The recipe's name and its settings. Raises OvenError, unless help was asked for, which is shown without them, or
    the script is the user's own, and needs none."""
    from oven_core.errors import OvenError
    from oven_runs.home.run_folder import Home
    from oven_runs.settings.resolution import named_recipe

    try:
        earlier = Home().find(own.get("run")).earlier_settings() if own.get("resume") else None
        return named_recipe(
            recipe=own.get("recipe"),
            config=Path(own["config"]) if own.get("config") else None,
            sets=own.get("sets") or (),
            environ=os.environ,
            earlier=earlier,
        )
    except OvenError:
        if asked_for_help or own.get("no_learner"):
            return None
        raise


def _options(recipe: str, model: type[BaseModel], own: set[str | None]) -> list[Any]:
    """An option per setting, but for those whose name the command has itself."""
    from oven_runs.settings.recipe_flags import flag, is_switch

    parameters = []
    for name, field in model.model_fields.items():
        if name in own:
            continue
        about: dict[str, Any] = {
            "help": _described(field.description or "", field.get_default(call_default_factory=True)),
            "rich_help_panel": f"Settings of the recipe {recipe}",
            "show_default": False,
        }
        switch = is_switch(field)
        declared = f"{flag(name)}/{flag('no_' + name)}" if switch else flag(name)
        if not switch:
            about["metavar"] = "VALUE"
        kind: Any = bool if switch else str
        annotation = Annotated[kind | None, typer.Option(declared, **about)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def settings(**_: Any) -> None: ...

    settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    settings.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    command: Any = get_command(app)
    return list(command.params)


def _described(text: str, default: Any) -> str:
    """What a setting is, and its default as it would be given, `25,50,75` for a list."""
    given = ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
    said = text[:1].upper() + text[1:]
    return said if default is None else f"{said} (default {given})".strip()
