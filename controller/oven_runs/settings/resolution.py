"""Settings checked against what is installed: defaults < oven.yaml < OVEN_SET_… < --set < flags.

Every layer is merged before anything is checked, and each value remembers where it came from, so that an error names
the place to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.protocol.rules import Rules
from oven_runs.settings.agents import agent_spec, wanted, with_agent_rules
from oven_runs.settings.completions import with_checked_redaction
from oven_runs.settings.layers import (
    Layer,
    Origin,
    from_environment,
    from_set,
    merge,
    origins,
    read_text,
    read_yaml,
    validated,
)
from oven_runs.settings.member_checks import with_checked_members
from oven_runs.settings.model import ATTACHED, Settings
from oven_runs.settings.notifications import NotifySettings
from oven_runs.settings.strict_yaml import key_lines

DEFAULT_RECIPE = "grpo"
"""What `up` trains where nothing names a recipe."""


class Start(Protocol):
    """Where a recipe's run begins. `label` is empty unless it is a drill."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    def describe(self) -> str: ...


class Recipe(Protocol):
    """What the stack asks of an entry point of oven.recipes; importing it must not import torch."""

    @property
    def default_start(self) -> str: ...
    @property
    def settings_model(self) -> type[BaseModel]: ...
    def parse_start(self, text: str, seed: int, options: Any) -> Start: ...


@dataclass(frozen=True)
class Resolved:
    """Settings that were checked against what is installed."""

    settings: Settings
    start: Start | None
    options: BaseModel | None = None
    """The recipe's own settings, with their defaults."""
    layers: tuple[Layer, ...] = ()

    def origins(self) -> list[Origin]:
        """Every setting with its value and where that comes from, in the order of the model."""
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
    earlier: Mapping[str, Any] | None = None,
) -> Resolved:
    """Merge the layers and check every value. Raises ConfigError or UnknownNameError, naming value and remedy.

    `attached` is for a script of the user's own: no recipe, and autonomy begins at `observe`. `earlier` is what a
    run that is resumed was configured with. `recipe_flags` are those of the recipe's own settings
    (oven_runs.settings.recipe_flags).
    """
    layers: list[Layer] = []
    if attached:
        layers.append(Layer("default", {"recipe": ATTACHED, "rules": {"autonomy": "observe"}}, "default"))
    layers += _layers(config, sets, environ or {}, earlier)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    layers += [Layer("command line", given, "flag"), *recipe_flags]
    merged = _merged(layers)
    recipe = None if attached else _recipe(merged.get("recipe", DEFAULT_RECIPE))
    options_model = recipe.settings_model if recipe else None
    settings = with_agent_rules(validated(Settings, merged, "", layers, options_model))
    checked = {
        "committee": with_checked_members(settings.committee),
        "completions": with_checked_redaction(settings.completions),
    }
    settings = settings.model_copy(update=checked)
    if settings.stream_replicas > 1 and not settings.nats:
        raise ConfigError(
            f"stream_replicas = {settings.stream_replicas} needs a cluster: give its servers with --nats URL,URL,…, or "
            "leave it out, the embedded server is one"
        )
    for agent in settings.agents or ():
        agent_spec(agent)
    if recipe is None:
        if attached and settings.recipe != ATTACHED:
            raise ConfigError("`recipe` has no meaning for your own script; leave it out, or use `up --recipe`")
        if settings.recipe_options:
            raise ConfigError("`recipe_options` has no meaning for your own script; leave it out")
        return Resolved(settings, None, layers=tuple(layers))
    assert options_model is not None
    options = validated(options_model, settings.recipe_options, "recipe_options.", layers, None)
    try:
        start = recipe.parse_start(settings.start or recipe.default_start, settings.seed, options)
    except ValueError as error:
        raise ConfigError(f"--start {settings.start}: {error}") from error
    # Only what was asked for: the recipe's own defaults may depend on the rest.
    chosen = options.model_dump(mode="json", exclude_unset=True)
    agents = tuple(agent_spec(agent).target for agent in wanted(settings))
    update = {"start": start.name, "recipe_options": chosen, "agents": agents}
    return Resolved(settings.model_copy(update=update), start, options, tuple(layers))


def named_recipe(
    *,
    recipe: str | None,
    config: Path | None,
    sets: Sequence[str],
    environ: Mapping[str, str],
    earlier: Mapping[str, Any] | None,
) -> tuple[str, type[BaseModel]] | None:
    """The name that `recipe`, the flag, or the layers below it give a run's recipe, and its settings; None where that
    is a script. Raises ConfigError or UnknownNameError."""
    name = str(recipe or _merged(_layers(config, sets, environ, earlier)).get("recipe", DEFAULT_RECIPE))
    return None if name == ATTACHED else (name, _recipe(name).settings_model)


def _layers(
    config: Path | None, sets: Sequence[str], environ: Mapping[str, str], earlier: Mapping[str, Any] | None
) -> list[Layer]:
    """What stands below the flags, the weakest first."""
    layers = [Layer("the run's config.json", dict(earlier), "run")] if earlier else []
    if config is not None:
        layers.append(Layer(str(config), read_yaml(config), "file", key_lines(read_text(config))))
    return [*layers, *from_environment(environ), *(from_set(text) for text in sets)]


def _merged(layers: Sequence[Layer]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        merge(merged, layer.values)
    return merged


def rules_in(path: Path) -> dict[str, Any]:
    """What a settings file says under `rules`, checked. Raises ConfigError, also where it says nothing there."""
    values = read_yaml(path)
    if not values.get("rules"):
        raise ConfigError(f"{path} has no `rules:`; write e.g.\nrules:\n  window_ticks: 5")
    given = {"rules": values["rules"]}
    settings = validated(Settings, given, "", [Layer(str(path), given, "file")], None)
    return settings.rules.model_dump(mode="json", exclude_unset=True)


def rules_set(sets: Sequence[str]) -> dict[str, Any]:
    """The rules of `--set rules.KEY=VALUE`, checked. Raises ConfigError, also for what is not a rule."""
    layers = [from_set(text) for text in sets]
    merged: dict[str, Any] = {}
    for text, layer in zip(sets, layers, strict=True):
        if set(layer.values) != {"rules"}:
            raise ConfigError(f"--set {text}: only rules can be set for a run that is over, e.g. rules.window_ticks=5")
        merge(merged, layer.values)
    settings = validated(Settings, merged, "", layers, None)
    return settings.rules.model_dump(mode="json", exclude_unset=True)


def notify_settings(
    *, config: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str], urls: Sequence[str] = ()
) -> NotifySettings:
    """What the layers say under `notify`, checked; `urls` take the place of its addresses. Raises ConfigError, also for
    a `--set` of something else."""
    given = [from_set(text) for text in sets]
    for layer in given:
        if set(layer.values) != {"notify"}:
            raise ConfigError(f"{layer.source}: only notify can be set here, e.g. notify.severity=warning")
    found = [Layer(str(config), read_yaml(config), "file")] if config is not None else []
    found += from_environment(environ)
    layers = [Layer(one.source, {"notify": one.values["notify"]}, one.kind) for one in found if "notify" in one.values]
    layers += [*given, *([Layer("command line", {"notify": {"to": list(urls)}}, "flag")] if urls else [])]
    merged: dict[str, Any] = {}
    for layer in layers:
        merge(merged, layer.values)
    return validated(Settings, merged, "", layers, None).notify


def with_rules(rules: Rules, given: Mapping[str, Any]) -> Rules:
    """A run's rules with some of them replaced; in `autonomy_of`, those of the actuators that are named."""
    values = rules.model_dump()
    merge(values, given)
    return Rules.model_validate(values)


def _recipe(name: Any) -> Recipe:
    recipe: Recipe = plugins.load("recipes", "recipe", str(name))
    return recipe
