"""What a run is told: one model, filled from defaults < oven.yaml < OVEN_SET_… < --set < flags.

Every layer is merged before anything is checked, and each value remembers where it came from, so that an error names
the place to change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from oven_controller import plugins
from oven_controller.errors import ConfigError, UnknownNameError
from oven_controller.mesh.requirements import FORMS, NEED
from oven_controller.protocol import names
from oven_controller.protocol.rules import ALL, Rules
from oven_controller.security.credentials import Role
from oven_controller.settings.agent_options import Number, numbers
from oven_controller.settings.origins import Layer, Origin, layer_of, origins
from oven_controller.settings.strict_yaml import key_lines, load_yaml, place_of, problem_of
from oven_controller.user_files import read_file

_Model = TypeVar("_Model", bound=BaseModel)

ENVIRONMENT = "OVEN_SET_"
"""`OVEN_SET_RULES__WINDOW_TICKS=5` says what `--set rules.window_ticks=5` says; two underscores stand for the dot."""

ATTACHED = "attached"
"""The recipe's name when the training script is the user's own."""


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class RuleSettings(Rules):
    """The same as a person writes them: a name that is not a rule is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("requires")
    @classmethod
    def _checkable(cls, pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for change, need in pairs:
            if not NEED.fullmatch(need):
                raise ValueError(f"{change} needs {need!r}, which the mesh cannot check; write {FORMS}")
        return pairs


class AgentSettings(BaseModel):
    """An agent with more to say of it than its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="an entry point of the group oven.agents, or a file")
    shadow: bool = Field(default=False, description="its name goes into rules.shadow")
    speciality: tuple[str, ...] | None = Field(
        default=None,
        description="actuators on which it is trusted, into rules.trusted; none: an installed agent is on all, a file "
        "is a newcomer",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="its options, into agent_options; `agent list NAME` shows which it has"
    )


class MemberSettings(BaseModel):
    """A remote judge of the reward committee: which model, behind which API, in which role."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api: Literal["openai", "anthropic"] = Field(description="openai: any server that speaks its chat completions")
    model: str = Field(min_length=1, description="the model's name at this API")
    role: Literal["critic", "adversary"] = Field(
        default="critic", description="critic: marks quality against the task; adversary: looks for tricks"
    )
    base_url: str = Field(default="", pattern="^$|^https?://", description="empty: the provider's own")
    key_env: str = Field(
        default="",
        description="environment variable with the key; empty: the SDK's usual one, or no key with a base_url",
    )


class CommitteeSettings(BaseModel):
    """Who scores completions beside the recipe's own rules, and what becomes of their scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: dict[str, MemberSettings] = Field(default_factory=dict, description="remote members by name")
    quorum: int | None = Field(
        default=None, ge=1, description="scores that a group needs; none: two, or one where one member has weight"
    )
    deadline_s: float = Field(
        default=20.0, gt=0, le=600, description="seconds that remote members have for all groups of a step"
    )
    caution: float = Field(default=0.5, ge=0, le=2, description="λ in weighted mean − λ × weighted deviation")
    hold_after: int = Field(default=10, ge=1, description="steps in a row without a scored group until the run holds")


class Settings(BaseModel):
    """The whole configuration of a run; `config.json` in its folder is this, resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str = Field(default="grpo", description="what is trained: an entry point of the group oven.recipes")
    start: str = Field(default="", description="where training begins; empty: the recipe's default")
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="random seed")
    steps: int | None = Field(default=None, ge=1, le=10**9, description="optimizer steps; none: the recipe's default")
    minutes: float | None = Field(
        default=None, gt=0, le=10**7, allow_inf_nan=False, description="time budget; none: no limit"
    )
    agents: Annotated[tuple[str | AgentSettings, ...] | None, BeforeValidator(_split)] = Field(
        default=None,
        description="names of the group oven.agents, files, or {name: …, shadow: true, speciality: […], options: {…}}; "
        "none: all that are installed",
    )
    agent_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="options of agents by the agent's name, e.g. {lr: {cut: 4}}"
    )
    agents_per_process: int | None = Field(
        default=None,
        ge=1,
        description="agents that share a process and a connection; none: the installed ones share one, and each file "
        "has its own (at a server that is there already all have)",
    )
    agents_memory_mb: int | None = Field(
        default=None,
        ge=128,
        le=1_000_000,
        description="MB of memory that a process of agents may take, and each that it starts; none: as much as there "
        "is. Linux only",
    )
    rules: RuleSettings = RuleSettings()
    committee: CommitteeSettings = CommitteeSettings()
    kg: bool = Field(default=True, description="start the prior service")
    otlp: str = Field(default="", pattern="^$|^https?://", description="send traces there, OTLP over HTTP; empty: off")
    lockstep: bool = Field(default=False, description="the learner waits at every tick, so that a run can be repeated")
    charge_rollbacks: bool = Field(
        default=False,
        description="steps that a rollback threw away count as steps, so that runs can be compared at equal cost",
    )
    recipe_options: dict[str, Any] = Field(default_factory=dict, description="the recipe's own settings")
    nats: str = Field(
        default="",
        pattern="^$|^(nats|tls|ws|wss)://",
        description="a server to use, or a cluster's with commas; empty: the embedded one",
    )
    creds: str = Field(default="", description="with nats: an .nk file, or a folder with one per role")
    tls_ca: str = Field(default="", description="with nats: PEM file of the authority to trust; empty: the system's")
    port: int | None = Field(default=None, ge=1, le=65535, description="of the embedded server; none: a free one")
    meshes: int = Field(default=1, ge=1, le=5, description="number of mesh replicas; one is enough to keep deciding")
    stream_replicas: Literal[1, 3, 5] = Field(
        default=1, description="with nats, a cluster: how many of its servers keep the log"
    )
    headless: bool = Field(default=False, description="print progress lines instead of opening the monitor")

    @field_validator("nats")
    @classmethod
    def _addresses(cls, value: str) -> str:
        for url in value.split(",") if value else ():
            try:
                parts = urlsplit(url)
                whole = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
            except ValueError:
                whole = False
            if not whole:
                raise ValueError(f"{url!r} is not an address of a server; write e.g. nats://127.0.0.1:4222")
        return value


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
    environ: Mapping[str, str] | None = None,
    attached: bool = False,
    earlier: Mapping[str, Any] | None = None,
) -> Resolved:
    """Merge the layers and check every value. Raises ConfigError or UnknownNameError, naming value and remedy.

    `attached` is for a script of the user's own: no recipe, and autonomy begins at `observe`. `earlier` is what a
    run that is resumed was configured with.
    """
    layers: list[Layer] = []
    if attached:
        layers.append(Layer("default", {"recipe": ATTACHED, "rules": {"autonomy": "observe"}}, "default"))
    if earlier:
        layers.append(Layer("the run's config.json", dict(earlier), "run"))
    if config is not None:
        layers.append(Layer(str(config), read_yaml(config), "file", key_lines(_text(config))))
    layers.extend(_from_environment(environ or {}))
    layers.extend(_from_set(text) for text in sets)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    layers.append(Layer("command line", given, "flag"))
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer.values)
    recipe = None if attached else _recipe(merged.get("recipe", "grpo"))
    options_model = recipe.settings_model if recipe else None
    settings = _with_said(_validated(Settings, merged, "", layers, options_model))
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
    options = _validated(options_model, settings.recipe_options, "recipe_options.", layers, None)
    try:
        start = recipe.parse_start(settings.start or recipe.default_start, settings.seed, options)
    except ValueError as error:
        raise ConfigError(f"--start {settings.start}: {error}") from error
    # Only what was asked for: the recipe's own defaults may depend on the rest.
    chosen = options.model_dump(mode="json", exclude_unset=True)
    agents = tuple(agent_spec(agent).target for agent in _wanted(settings))
    update = {"start": start.name, "recipe_options": chosen, "agents": agents}
    return Resolved(settings.model_copy(update=update), start, options, tuple(layers))


def rules_in(path: Path) -> dict[str, Any]:
    """What a settings file says under `rules`, checked. Raises ConfigError, also where it says nothing there."""
    values = read_yaml(path)
    if not values.get("rules"):
        raise ConfigError(f"{path} has no `rules:`; write e.g.\nrules:\n  window_ticks: 5")
    given = {"rules": values["rules"]}
    settings = _validated(Settings, given, "", [Layer(str(path), given, "file")], None)
    return settings.rules.model_dump(mode="json", exclude_unset=True)


def rules_set(sets: Sequence[str]) -> dict[str, Any]:
    """The rules of `--set rules.KEY=VALUE`, checked. Raises ConfigError, also for what is not a rule."""
    layers = [_from_set(text) for text in sets]
    merged: dict[str, Any] = {}
    for text, layer in zip(sets, layers, strict=True):
        if set(layer.values) != {"rules"}:
            raise ConfigError(f"--set {text}: only rules can be set for a run that is over, e.g. rules.window_ticks=5")
        _merge(merged, layer.values)
    settings = _validated(Settings, merged, "", layers, None)
    return settings.rules.model_dump(mode="json", exclude_unset=True)


def with_rules(rules: Rules, given: Mapping[str, Any]) -> Rules:
    """A run's rules with some of them replaced; in `autonomy_of`, those of the actuators that are named."""
    values = rules.model_dump()
    _merge(values, given)
    return Rules.model_validate(values)


@dataclass(frozen=True)
class AgentSpec:
    name: str
    target: str  # an entry point's name, or a file's path
    options: tuple[tuple[str, Number], ...] = ()

    @property
    def installed(self) -> bool:
        return not self.target.endswith(".py")


def _wanted(settings: Settings) -> tuple[str | AgentSettings, ...]:
    return settings.agents if settings.agents is not None else tuple(plugins.points("agents"))


def _with_said(settings: Settings) -> Settings:
    """What was said of single agents as the mesh reads it: the rules say who is a shadow and who is trusted, and
    nothing else does. Raises ConfigError for a grant to an agent that the run does not have."""
    wanted, known = [(agent_spec(one), one) for one in _wanted(settings)], plugins.points("agents")
    said = {spec.name: one for spec, one in wanted if isinstance(one, AgentSettings)}
    shadows = {name for name in {*settings.rules.shadow, *said} if name not in said or said[name].shadow}
    installed = {spec.name: (ALL,) for spec, _ in wanted if spec.installed}
    named = {name: one.speciality for name, one in said.items() if one.speciality is not None}
    present = {spec.name for spec, _ in wanted}
    granted = {name: on for name, on in settings.rules.trusted.items() if name in present or name not in known}
    stray = next((name for name in granted if name not in present), None)
    if stray is not None:
        raise ConfigError(
            f"rules.trusted names {stray!r}, which is not an agent of this run; add it to `agents`, or trust one that "
            f"joins later with `oven-controller trust {stray}`"
        )
    agents = settings.agents
    if agents is not None:
        agents = tuple(one.name if isinstance(one, AgentSettings) else one for one in agents)
    trusted = {**installed, **granted, **named}
    rules = settings.rules.model_copy(update={"shadow": tuple(sorted(shadows)), "trusted": trusted})
    options = _options(settings.agent_options, said, present, known)
    return settings.model_copy(update={"agents": agents, "rules": rules, "agent_options": options})


def _options(
    given: Mapping[str, Mapping[str, Any]],
    said: Mapping[str, AgentSettings],
    present: Collection[str],
    known: Collection[str],
) -> dict[str, dict[str, Any]]:
    """By agent, an entry's own before those of `agent_options`; without those of installed agents that the run does not
    have. Raises UnknownNameError for an agent that is not there, ConfigError for what is not a number."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys([*given, *said]):
        if name not in present and name not in known:
            raise UnknownNameError("agent of this run", name, present)
        own = numbers(name, said[name].options) if name in said else {}
        options = {**numbers(name, given.get(name, {})), **own}
        if options and name in present:
            found[name] = dict(sorted(options.items()))
    return found


def per_process(settings: Settings) -> int | None:
    """For `stack.plan.pools`. Keys that were made elsewhere are an agent's each."""
    return 1 if settings.nats and settings.agents_per_process is None else settings.agents_per_process


def agent_spec(agent: str | AgentSettings) -> AgentSpec:
    """Which agent is meant. Raises UnknownNameError or ConfigError."""
    text = agent.name if isinstance(agent, AgentSettings) else agent
    if not text.endswith(".py"):
        known = plugins.points("agents")
        if text not in known:
            raise UnknownNameError("agent", text, known)
        return AgentSpec(text, text)
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"there is no agent file {text}; `oven-controller agent new NAME` writes one to start from")
    return AgentSpec(names.checked("agent", path.stem), str(path.resolve()))


def agent_specs(settings: Settings) -> list[AgentSpec]:
    """Raises ConfigError for a name that is taken: a name is a key on the bus, so agents, committee members and the
    stack's own roles share them."""
    specs = [agent_spec(agent) for agent in _wanted(settings)]
    given = {name: tuple(numbers(name, options).items()) for name, options in settings.agent_options.items()}
    specs = [replace(spec, options=given.get(spec.name, ())) for spec in specs]
    taken = {role: "a role of the stack" for role in get_args(Role)}
    for spec in specs:
        if taken.get(spec.name) == "an agent":
            raise ConfigError(f"two agents are called {spec.name!r}; rename one of the files")
        if spec.name in taken:
            raise ConfigError(f"agent {spec.name!r} has the name of {taken[spec.name]}; rename its file")
        taken[spec.name] = "an agent"
    for name in settings.committee.members:
        if names.checked("committee member", name) in taken:
            raise ConfigError(
                f"committee member {name!r} has the name of {taken[name]}; rename it in committee.members"
            )
    return specs


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file. Raises ConfigError."""
    try:
        value = load_yaml(_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{place_of(error)}: {problem_of(error)}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        what = "a list" if isinstance(value, list) else f"the value {str(value)[:40]!r} alone"
        raise ConfigError(f"{path} holds {what}; it must be `key: value` lines, e.g. `seed: 1`")
    return {str(key): entry for key, entry in value.items()}


def _text(path: Path) -> str:
    try:
        return read_file(path, "--config").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _from_set(text: str) -> Layer:
    key, sign, raw = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {text!r} has no key and value; write e.g. --set rules.window_ticks=5")
    return Layer(f"--set {key.strip()}", _nested(key.strip(), raw, f"--set {text}"), "set")


def _from_environment(environ: Mapping[str, str]) -> Iterator[Layer]:
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT):
            key = variable.removeprefix(ENVIRONMENT).lower().replace("__", ".")
            yield Layer(variable, _nested(key, environ[variable], variable), "environment")


def _nested(key: str, raw: str, source: str) -> dict[str, Any]:
    try:
        value = load_yaml(raw)
    except yaml.YAMLError as error:
        source = source if len(source) <= 80 else source[:79] + "…"
        raise ConfigError(f"{source}: the value is not YAML: {problem_of(error)}") from error
    parts = key.split(".")
    if parts[:2] == ["rules", "autonomy_of"] and len(parts) > 2:
        parts = [*parts[:2], ".".join(parts[2:])]  # an actuator's name has dots of its own
    for part in reversed(parts):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            held = into.get(key)
            into[key] = dict(held) if isinstance(held, Mapping) else {}
            _merge(into[key], value)
        else:
            into[key] = value


def _recipe(name: Any) -> Recipe:
    recipe: Recipe = plugins.load("recipes", "recipe", str(name))
    return recipe


def _validated(
    model: type[_Model],
    values: Mapping[str, Any],
    prefix: str,
    layers: Sequence[Layer],
    options: type[BaseModel] | None,
) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
    known = [prefix + key for key in dotted_names(model)]
    if options is not None:
        known += [f"recipe_options.{key}" for key in dotted_names(options)]
    lines = []
    for problem in found:
        parts = tuple(str(part) for part in problem["loc"])
        where = prefix + ".".join(parts)
        source = layer_of(where.split("."), layers).source
        if problem["type"] == "extra_forbidden":
            for leaf in _leaves(where, problem["input"]):
                lines.append(f"there is no setting {leaf!r} ({source}); {nearest(leaf, known)}")
        else:
            message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
            lines.append(f"{where} = {problem['input']!r} ({source}): {message}")
    raise ConfigError("\n".join(lines))


def _leaves(where: str, value: Any) -> list[str]:
    """The dotted names that were written: an unknown folder is best understood by what is in it."""
    if not isinstance(value, Mapping) or not value:
        return [where]
    return [leaf for key, inner in value.items() for leaf in _leaves(f"{where}.{key}", inner)]


def dotted_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every setting's name as --set takes it."""
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += dotted_names(inner, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def nearest(name: str, known: Sequence[str]) -> str:
    """A sentence with the settings that may have been meant: by the last part wherever it stands, else by the whole."""
    leaves: dict[str, list[str]] = {}
    for full in known:
        leaves.setdefault(full.rsplit(".", 1)[-1], []).append(full)
    close = difflib.get_close_matches(name.rsplit(".", 1)[-1], leaves, n=3, cutoff=0.7)
    near = [full for leaf in close for full in leaves[leaf]] or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(full) for full in near[:3]) + "?"
    folder = name.rpartition(".")[0]
    beside = [full for full in known if folder and full.startswith(folder + ".")]
    beside = beside or list(dict.fromkeys(full.split(".")[0] for full in known))
    return "known: " + ", ".join(beside[:20]) + (", …" if len(beside) > 20 else "")
