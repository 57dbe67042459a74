"""Merge settings from all layers and check them against the installed packages.

Later sources take precedence: defaults, oven.yaml, OVEN_SET_… variables, --set, flags. All layers are merged before
validation. Each value keeps its source, so that an error can name the place to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from oven_core import plugins
from oven_core.errors import ConfigError, OvenError
from oven_core.protocol.rules import Rules
from oven_runs.settings.agents import agent_spec, selected_agents, with_agent_rules
from oven_runs.settings.committee_members import with_checked_members
from oven_runs.settings.completions import ATTACHED, with_checked_redaction
from oven_runs.settings.layers import (
    Layer,
    Origin,
    layer_from_set,
    layers_from_environment,
    merge,
    origins,
    read_text,
    read_yaml,
    validate,
)
from oven_runs.settings.notifications import NotifySettings
from oven_runs.settings.run_settings import Settings
from oven_runs.settings.strict_yaml import key_lines

DEFAULT_RECIPE = "grpo"
"""The recipe that `up` uses by default."""


class Start(Protocol):
    """A starting point of a recipe. `label` is empty unless the start is a drill, which stages a fault."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    def describe(self) -> str: ...


class Recipe(Protocol):
    """The interface of `oven.recipes` entry points. Importing one must not import torch."""

    @property
    def default_start(self) -> str: ...
    @property
    def starts(self) -> Mapping[str, str]: ...
    @property
    def settings_model(self) -> type[BaseModel]: ...
    def parse_start(self, text: str, seed: int, options: Any) -> Start: ...


@dataclass(frozen=True)
class ResolvedSettings:
    """Validated settings, with the source of each value."""

    settings: Settings
    start: Start | None
    options: BaseModel | None = None
    """The recipe's own settings, with their defaults."""
    layers: tuple[Layer, ...] = ()

    def origins(self) -> list[Origin]:
        """Return every setting with its value and source, in the model's order."""
        values = self.settings.model_dump(mode="json")
        if self.options is not None:
            values["recipe_options"] = self.options.model_dump(mode="json")
        return list(origins(values, self.layers))


def resolve(
    *,
    config: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    recipe_flags: Sequence[Layer] = (),
    environ: Mapping[str, str] | None = None,
    attached: bool = False,
    earlier_settings: Mapping[str, Any] | None = None,
) -> ResolvedSettings:
    """Merge the layers and check every value. Raises ConfigError or UnknownNameError, with the value and the remedy.

    `attached` means that the training script is the user's own, so there is no recipe, and autonomy begins at
    `observe`. `earlier_settings` are those of the run to resume. `recipe_flags` are layers from flags for the recipe's
    own settings (oven_runs.settings.recipe_flags).
    """
    layers: list[Layer] = []
    if attached:
        layers.append(Layer("default", {"recipe": ATTACHED, "rules": {"autonomy": "observe"}}, "default"))
    layers += _collect_layers(config, sets, environ or {}, earlier_settings)
    used_flags = {key: value for key, value in (flags or {}).items() if value is not None}
    layers += [Layer("command line", used_flags, "flag"), *recipe_flags]
    values = _merge_layers(layers)
    recipe = None if attached else _load_recipe(values.get("recipe", DEFAULT_RECIPE))
    options_model = recipe.settings_model if recipe else None
    settings = with_agent_rules(validate(Settings, values, "", layers, options_model))
    changes = {
        "committee": with_checked_members(settings.committee),
        "completions": with_checked_redaction(settings.completions),
    }
    settings = settings.model_copy(update=changes)
    if settings.stream_replicas > 1 and not settings.nats:
        raise ConfigError(
            f"stream_replicas = {settings.stream_replicas} needs a cluster: name its servers with --nats URL,URL,…, or "
            "omit it, because there is only one embedded server"
        )
    if recipe is None:
        if attached and settings.recipe != ATTACHED:
            raise ConfigError("`recipe` has no meaning for your own script; remove it, or use `up --recipe`")
        if settings.recipe_options:
            raise ConfigError("`recipe_options` has no meaning for your own script; remove it")
        return ResolvedSettings(settings, None, layers=tuple(layers))
    assert options_model is not None
    options = validate(options_model, settings.recipe_options, "recipe_options.", layers, None)
    try:
        start = recipe.parse_start(settings.start or recipe.default_start, settings.seed, options)
    except ValueError as error:
        owners = [name for name in plugins.find_plugins("recipes") if _has_start(name, settings.start)]
        hint = f" ({settings.start} is a start of --recipe {' or '.join(owners)})" if owners else ""
        raise ConfigError(f"--start {settings.start}: {error}{hint}") from error
    # Save only the options that were set, because the recipe's defaults for the others may depend on them.
    chosen_options = options.model_dump(mode="json", exclude_unset=True)
    agents = tuple(agent_spec(agent).target for agent in selected_agents(settings))
    update = {"start": start.name, "recipe_options": chosen_options, "agents": agents}
    return ResolvedSettings(settings.model_copy(update=update), start, options, tuple(layers))


def selected_recipe(
    *,
    recipe: str | None,
    config: Path | None,
    sets: Sequence[str],
    environ: Mapping[str, str],
    earlier_settings: Mapping[str, Any] | None,
) -> tuple[str, type[BaseModel]] | None:
    """Return the name and settings model of `recipe`, or if it is None, of the recipe in the settings. Return None for
    the user's own script. Raises ConfigError or UnknownNameError."""
    if not recipe:
        values = _merge_layers(_collect_layers(config, sets, environ, earlier_settings))
        recipe = str(values.get("recipe", DEFAULT_RECIPE))
    return None if recipe == ATTACHED else (recipe, _load_recipe(recipe).settings_model)


def _collect_layers(
    config: Path | None, sets: Sequence[str], environ: Mapping[str, str], earlier_settings: Mapping[str, Any] | None
) -> list[Layer]:
    """Return the layers below the flags, lowest precedence first."""
    layers = [Layer("the run's config.json", dict(earlier_settings), "run")] if earlier_settings else []
    if config is not None:
        layers.append(Layer(str(config), read_yaml(config), "file", key_lines(read_text(config))))
    return [*layers, *layers_from_environment(environ), *(layer_from_set(text) for text in sets)]


def _merge_layers(layers: Sequence[Layer]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for layer in layers:
        merge(values, layer.values)
    return values


def read_rules(path: Path) -> dict[str, Any]:
    """Return the checked `rules` of a settings file. Raises ConfigError, also if there are none."""
    values = read_yaml(path)
    if not values.get("rules"):
        raise ConfigError(f"{path} has no `rules:`; write e.g.\nrules:\n  window_ticks: 5")
    return _checked_rules([Layer(str(path), {"rules": values["rules"]}, "file")])


def rules_from_sets(sets: Sequence[str]) -> dict[str, Any]:
    """Return the checked rules of `--set rules.KEY=VALUE`. Raises ConfigError, also for other settings."""
    layers = [layer_from_set(text) for text in sets]
    for layer in layers:
        if set(layer.values) != {"rules"}:
            raise ConfigError(
                f"{layer.source}: only rules can be set for a run that has ended, e.g. rules.window_ticks=5"
            )
    return _checked_rules(layers)


def _checked_rules(layers: Sequence[Layer]) -> dict[str, Any]:
    settings = validate(Settings, _merge_layers(layers), "", layers, None)
    return settings.rules.model_dump(mode="json", exclude_unset=True)


def notify_settings(
    *, config: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str], urls: Sequence[str] = ()
) -> NotifySettings:
    """Return the checked `notify` settings of all layers. `urls` replace their addresses. Raises ConfigError."""
    set_layers = [layer_from_set(text) for text in sets]
    if unrelated := next((layer for layer in set_layers if set(layer.values) != {"notify"}), None):
        raise ConfigError(f"{unrelated.source}: only notify can be set here, e.g. notify.severity=warning")
    sources = (layer for layer in _collect_layers(config, (), environ, None) if "notify" in layer.values)
    layers = [Layer(layer.source, {"notify": layer.values["notify"]}, layer.kind) for layer in sources]
    url_layers = [Layer("command line", {"notify": {"to": list(urls)}}, "flag")] if urls else []
    layers += [*set_layers, *url_layers]
    return validate(Settings, _merge_layers(layers), "", layers, None).notify


def with_rules(rules: Rules, changes: Mapping[str, Any]) -> Rules:
    """Return the rules with these changes. `autonomy_of` is merged actuator by actuator."""
    values = rules.model_dump()
    merge(values, changes)
    return Rules.model_validate(values)


def _has_start(recipe: str, start: str | None) -> bool:
    """Whether the recipe, with its default settings, has this start."""
    try:
        loaded = _load_recipe(recipe)
        return loaded.parse_start(start or loaded.default_start, 0, loaded.settings_model()).name == start
    except (OvenError, ValueError):
        return False


def _load_recipe(name: Any) -> Recipe:
    recipe: Recipe = plugins.load("recipes", "recipe", str(name))
    return recipe
