"""The settings of a run, as a pydantic model that is filled from `oven.yaml`, `--set` and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from oven_core.mesh.change_requirements import NEED_FORMS, NEED_PATTERN
from oven_core.protocol.rules import Rules
from oven_core.security.tls import checked_addresses
from oven_runs.settings.committee_settings import CommitteeSettings
from oven_runs.settings.completions import ATTACHED, CompletionsSettings
from oven_runs.settings.language_models import AuthorSettings, SupervisorSettings, TunerSettings
from oven_runs.settings.notifications import NotifySettings


def _split_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class RuleSettings(Rules):
    """The decision rules in a settings file. Unlike in a logged message, an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expire_seconds: float = Field(
        default=10.0, ge=0, le=60, description=Rules.model_fields["expire_seconds"].description
    )

    @field_validator("requires")
    @classmethod
    def _check_requirements(cls, requirements: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for change, need in requirements:
            if not NEED_PATTERN.fullmatch(need):
                raise ValueError(f"{change} requires {need!r}, which the mesh cannot check; write {NEED_FORMS}")
        return requirements


class AgentSettings(BaseModel):
    """An entry in `agents` that sets more than the agent's name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="an entry point of the group oven.agents, or a file")
    shadow: bool = Field(default=False, description="add the agent's name to rules.shadow")
    alone: tuple[str, ...] = Field(
        default=(), description="actuators on which the agent is trusted and decides alone (rules.alone)"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="the agent's options (agent_options); `agent list NAME` lists them"
    )


class Settings(BaseModel):
    """The complete configuration of a run. The resolved form is saved as `config.json` in the run's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str = Field(default="grpo", description="the recipe to train: an entry point of the group oven.recipes")
    start: str = Field(default="", description="starting point of the training; if empty, the recipe's default")
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="random seed")
    steps: int | None = Field(default=None, ge=1, le=10**9, description="optimizer steps; by default the recipe's")
    minutes: float | None = Field(
        default=None, gt=0, le=10**7, allow_inf_nan=False, description="time budget in minutes; if none, no limit"
    )
    agents: Annotated[tuple[str | AgentSettings, ...] | None, BeforeValidator(_split_list)] = Field(
        default=None,
        description="entry points of the group oven.agents, files, or {name: …, shadow: true, alone: […], "
        "options: {…}}; if none, all installed agents",
    )
    agent_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="options of agents by the agent's name, e.g. {learning_rate: {cut: 4}}"
    )
    agents_per_process: int | None = Field(
        default=None,
        ge=1,
        description="agents that share a process and a connection; by default installed agents share one, and each "
        "file has its own (with `nats`, every agent has its own)",
    )
    agents_memory_mb: int | None = Field(
        default=None,
        ge=128,
        le=1_000_000,
        description="memory limit in MB of each process of agents and each process that it starts; if none, no limit. "
        "Linux only",
    )
    rules: RuleSettings = RuleSettings()
    committee: CommitteeSettings = CommitteeSettings()
    completions: CompletionsSettings = CompletionsSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    tuner: TunerSettings = TunerSettings()
    author: AuthorSettings = AuthorSettings()
    notify: NotifySettings = NotifySettings()
    export: Annotated[tuple[str, ...], BeforeValidator(_split_list)] = Field(
        default=(),
        max_length=8,
        description="targets that get the run while it trains: mlflow, parquet, tensorboard, …",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of a page for Prometheus on 127.0.0.1; 0: a free one; if none, off",
    )
    kg: bool | str = Field(
        default=True,
        description="the prior service's graph. true: the built-in graph; a folder from `kg import`: that one too, for "
        "query, curriculum and token_prior; false: no service",
    )
    otlp: str = Field(
        default="", pattern="^$|^https?://", description="OTLP/HTTP address for traces and metrics; if empty, off"
    )
    lockstep: bool = Field(default=False, description="wait for all live agents at each tick, for repeatable runs")
    charge_rollbacks: bool = Field(
        default=False,
        description="count steps that rollbacks discarded towards `steps`, to compare runs at equal cost",
    )
    recipe_options: dict[str, Any] = Field(default_factory=dict, description="the recipe's own settings")
    nats: str = Field(
        default="",
        pattern="^$|^(nats|tls|ws|wss)://",
        description="address of your own server, or of a cluster's servers with commas; if empty, the embedded server",
    )
    creds: str = Field(default="", description="with nats: an .nk file, or a folder with one file per role")
    tls_ca: str = Field(
        default="", description="with nats: PEM file of the certificate authority; if empty, the system's authorities"
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="embedded server's port; by default a free one")
    meshes: int = Field(default=1, ge=1, le=5, description="number of mesh replicas; one is enough to keep deciding")
    stream_replicas: Literal[1, 3, 5] = Field(
        default=1, description="with a cluster as nats: number of its servers that store the log"
    )
    headless: bool = Field(default=False, description="print progress lines instead of opening the monitor")

    @property
    def completions_every(self) -> int:
        """Number of steps between two samples of completions; 0 for none."""
        return self.completions.steps_between(attached=self.recipe == ATTACHED)

    @field_validator("kg")
    @classmethod
    def _make_graph_folder_absolute(cls, value: bool | str) -> bool | str:
        if isinstance(value, bool):
            return value
        if not value:
            raise ValueError("it should be a folder that `oven-controller kg import` wrote, true or false")
        return str(Path(value).absolute())  # the service may run in another folder

    @field_validator("nats")
    @classmethod
    def _check_addresses(cls, value: str) -> str:
        return ",".join(checked_addresses(value)) if value else value


def dotted_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the name of every setting, as written in --set."""
    dotted = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            dotted += dotted_names(inner, f"{prefix}{name}.")
        else:
            dotted.append(prefix + name)
    return dotted
