"""Select a run's agents from its settings, with their rules and options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from oven_core import plugins
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol import names
from oven_core.protocol.permissions import Role
from oven_core.protocol.rules import ALL
from oven_runs.settings.agent_options import Number, numeric_options
from oven_runs.settings.judge_providers import catalogue, endpoint_of
from oven_runs.settings.run_settings import AgentSettings, Settings

SUPERVISOR = "supervisor"
"""An installed agent that calls a language model. It has its own process, because it is busy for seconds at a time."""
TUNER = "tuner"
"""An installed agent that, like the supervisor, is not trusted by default: no test has shown that its votes help."""
GRAPH = "graph"  # an installed agent that votes for the knowledge graph
AUTHOR = "author"  # an installed agent that writes prompts


@dataclass(frozen=True)
class AgentSpec:
    """An agent of a run."""

    name: str
    target: str
    """An entry point's name, or a file's path."""
    options: tuple[tuple[str, Number], ...] = ()

    @property
    def is_installed(self) -> bool:
        return not self.target.endswith(".py")

    @property
    def needs_own_process(self) -> bool:
        return self.target == SUPERVISOR


def selected_agents(settings: Settings) -> tuple[str | AgentSettings, ...]:
    """Return the agents in the settings, or all installed ones, without those whose language model is not set, and
    without the graph's voice if there is no graph."""
    if settings.agents is not None:
        return settings.agents
    models = {SUPERVISOR: settings.supervisor.model, TUNER: settings.tuner.llm, AUTHOR: settings.author.llm}
    absent = {name for name, model in models.items() if model is None}
    if settings.kg is False:
        absent.add(GRAPH)
    return tuple(name for name in plugins.find_plugins("agents") if name not in absent)


def agent_names(settings: Settings) -> set[str]:
    """Return the names of the run's agents."""
    return {agent_spec(agent).name for agent in selected_agents(settings)}


def with_agent_rules(settings: Settings) -> Settings:
    """Copy the settings of individual agents to the fields that the mesh reads: rules.shadow, rules.trusted,
    rules.alone and agent_options. Raises ConfigError if a grant names an agent that the run does not have."""
    installed_names = plugins.find_plugins("agents")
    specs = [(agent_spec(entry), entry) for entry in selected_agents(settings)]
    entries = {spec.name: entry for spec, entry in specs if isinstance(entry, AgentSettings)}
    run_names = {spec.name for spec, _ in specs}
    _check_models(settings, run_names)
    default_trust = {
        spec.name: (ALL,) for spec, _ in specs if spec.is_installed and spec.name not in (TUNER, SUPERVISOR)
    }
    trusted = {**default_trust, **_select_grants("trusted", settings.rules.trusted, run_names, installed_names)}
    alone = _select_grants("alone", settings.rules.alone, run_names, installed_names)
    alone |= {name: (*alone.get(name, ()), *entry.alone) for name, entry in entries.items() if entry.alone}
    shadows = tuple(sorted(_shadow_names(settings, entries, run_names)))
    rules = settings.rules.model_copy(update={"shadow": shadows, "trusted": trusted, "alone": alone})
    agents = settings.agents
    if agents is not None:
        agents = tuple(entry.name if isinstance(entry, AgentSettings) else entry for entry in agents)
    options = _merge_options(settings.agent_options, entries, run_names, installed_names)
    return settings.model_copy(update={"agents": agents, "rules": rules, "agent_options": options})


def _shadow_names(settings: Settings, entries: Mapping[str, AgentSettings], run_names: Collection[str]) -> set[str]:
    """Return the agents whose votes do not count. An agent's entry in `agents` overrides rules.shadow."""
    shadows = set(settings.rules.shadow).difference(entries) | {name for name, entry in entries.items() if entry.shadow}
    if settings.tuner.llm is not None and settings.tuner.shadow and TUNER in run_names:
        shadows.add(TUNER)
    if settings.supervisor.model is not None and settings.supervisor.shadow and SUPERVISOR in run_names:
        shadows.add(SUPERVISOR)
    return shadows


def _select_grants(
    name: str, grants: Mapping[str, tuple[str, ...]], run_names: Collection[str], installed: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the grants of the setting `rules.NAME` without those to installed agents that are not in this run. Raises
    ConfigError for other agents."""
    selected = {agent: actuators for agent, actuators in grants.items() if agent in run_names or agent not in installed}
    unknown = next((agent for agent in selected if agent not in run_names), None)
    if unknown is not None:
        raise ConfigError(
            f"rules.{name} names {unknown!r}, which is not an agent of this run; add it to `agents`, or trust an agent "
            f"that joins later with `oven-controller trust {unknown}`"
        )
    return selected


def _check_models(settings: Settings, run_names: Collection[str]) -> None:
    """Check the models of agents that call one. Raises ConfigError for settings of an agent that is not in the run, an
    unknown provider, a missing address, and a supervisor without a model."""
    providers = catalogue(settings.committee.providers)
    supervisor = settings.supervisor
    if SUPERVISOR in run_names and supervisor.model is None:
        raise ConfigError(
            "the agent `supervisor` has no model: set supervisor.model, e.g. supervisor: {model: {provider: claude, "
            "model: NAME}}, or remove it from `agents`"
        )
    for name, enabled, models in (
        (TUNER, settings.tuner.llm is not None, {"llm": settings.tuner.llm}),
        (AUTHOR, settings.author.llm is not None, {"llm": settings.author.llm}),
        (SUPERVISOR, supervisor.model is not None, {"model": supervisor.model, "worker": supervisor.worker}),
    ):
        if enabled and name not in run_names:
            raise ConfigError(f"{name} has settings but is not an agent of this run: add {name} to `agents`")
        for key, llm in models.items():
            if llm is not None:
                endpoint_of(name, llm, providers, f"{name}.{key}")


def _merge_options(
    agent_options: Mapping[str, Mapping[str, Any]],
    entries: Mapping[str, AgentSettings],
    run_names: Collection[str],
    installed: Collection[str],
) -> dict[str, dict[str, Any]]:
    """Return the options by agent. The entry of an agent overrides `agent_options`. Agents outside the run are omitted.
    Raises UnknownNameError for an agent that does not exist, and ConfigError for a value that is not a number."""
    options: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys([*agent_options, *entries]):
        if name not in run_names and name not in installed:
            raise UnknownNameError("agent of this run", name, run_names)
        entry_options = numeric_options(name, entries[name].options) if name in entries else {}
        agent_values = {**numeric_options(name, agent_options.get(name, {})), **entry_options}
        if agent_values and name in run_names:
            options[name] = dict(sorted(agent_values.items()))
    return options


def agents_per_process(settings: Settings) -> int | None:
    """Return how many agents share a process, or None for the default. On a user's own server, each agent gets a
    process, because it has its own key there."""
    return 1 if settings.nats and settings.agents_per_process is None else settings.agents_per_process


def agent_spec(agent: str | AgentSettings) -> AgentSpec:
    """Find an agent by name or file. Raises UnknownNameError or ConfigError."""
    text = agent.name if isinstance(agent, AgentSettings) else agent
    if not text.endswith(".py"):
        installed_names = plugins.find_plugins("agents")
        if text not in installed_names:
            raise UnknownNameError("agent", text, installed_names)
        return AgentSpec(text, text)
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"there is no agent file {text}; `oven-controller agent new NAME` writes a template")
    return AgentSpec(names.validate("agent", path.stem), str(path.resolve()))


def agent_specs(settings: Settings) -> list[AgentSpec]:
    """Return the run's agents with their options. Raises ConfigError for a name conflict. Agents, committee members and
    the stack's roles share one namespace, because each name has its own key on the bus."""
    specs = [agent_spec(agent) for agent in selected_agents(settings)]
    options = {name: tuple(numeric_options(name, values).items()) for name, values in settings.agent_options.items()}
    specs = [replace(spec, options=options.get(spec.name, ())) for spec in specs]
    owners = {role: "a role of the stack" for role in get_args(Role)}
    for spec in specs:
        if owners.get(spec.name) == "an agent":
            raise ConfigError(f"two agents are called {spec.name!r}; rename one of the files")
        if spec.name in owners:
            raise ConfigError(f"agent {spec.name!r} has the name of {owners[spec.name]}; rename its file")
        owners[spec.name] = "an agent"
    for name in settings.committee.members:
        if names.validate("committee member", name) in owners:
            raise ConfigError(
                f"committee member {name!r} has the name of {owners[name]}; rename it in committee.members"
            )
    return specs
