"""Which agents a run has, by its settings, and what the rules and options say of each."""

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
from oven_runs.settings.agent_options import Number, numbers
from oven_runs.settings.judge_providers import catalogue, endpoint_of
from oven_runs.settings.model import AgentSettings, Settings


@dataclass(frozen=True)
class AgentSpec:
    name: str
    target: str  # an entry point's name, or a file's path
    options: tuple[tuple[str, Number], ...] = ()

    @property
    def installed(self) -> bool:
        return not self.target.endswith(".py")

    @property
    def alone(self) -> bool:
        """Whether it must share its process with no other agent."""
        return self.target == SUPERVISOR


SUPERVISOR = "supervisor"
"""The installed agent that computes for seconds at a time: its own process, and only where a model is set."""


def wanted(settings: Settings) -> tuple[str | AgentSettings, ...]:
    """Those that are named, or all that are installed; the supervisor only where it has a model."""
    if settings.agents is not None:
        return settings.agents
    return tuple(
        name for name in plugins.points("agents") if name != SUPERVISOR or settings.supervisor.model is not None
    )


TUNER = "tuner"
"""The installed agent that is neither trusted nor counted unless the settings say so: a language model's votes are
nothing that a test has shown to help."""


AUTHOR = "author"


def with_agent_rules(settings: Settings) -> Settings:
    """What was said of single agents as the mesh reads it: the rules say who is a shadow and who is trusted, and
    nothing else does. Raises ConfigError for a grant to an agent that the run does not have."""
    specs, known = [(agent_spec(one), one) for one in wanted(settings)], plugins.points("agents")
    said = {spec.name: one for spec, one in specs if isinstance(one, AgentSettings)}
    shadows = {name for name in {*settings.rules.shadow, *said} if name not in said or said[name].shadow}
    present = {spec.name for spec, _ in specs}
    if settings.tuner.llm is not None and settings.tuner.shadow and TUNER in present:
        shadows.add(TUNER)
    if settings.supervisor.model is not None and settings.supervisor.shadow and SUPERVISOR in present:
        shadows.add(SUPERVISOR)
    _check_models(settings, present)
    installed = {spec.name: (ALL,) for spec, _ in specs if spec.installed and spec.name not in (TUNER, SUPERVISOR)}
    named = {name: one.speciality for name, one in said.items() if one.speciality is not None}
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


def _check_models(settings: Settings, present: Collection[str]) -> None:
    """Raises ConfigError for a model of an agent that the run does not have, a provider that the catalogue lacks, where
    there is no address, and for a supervisor without a model."""
    known = catalogue(settings.committee.providers)
    supervisor = settings.supervisor
    if SUPERVISOR in present and supervisor.model is None:
        raise ConfigError(
            "the agent supervisor has no model: set supervisor.model, e.g. supervisor: {model: {provider: claude, "
            "model: NAME}}, or take it out of `agents`"
        )
    for name, on, models in (
        (TUNER, settings.tuner.llm is not None, {"llm": settings.tuner.llm}),
        (AUTHOR, settings.author.llm is not None, {"llm": settings.author.llm}),
        (SUPERVISOR, supervisor.model is not None, {"model": supervisor.model, "worker": supervisor.worker}),
    ):
        if on and name not in present:
            raise ConfigError(f"{name} has settings, and is not an agent of this run: add {name} to `agents`")
        for key, llm in models.items():
            if llm is not None:
                endpoint_of(name, llm, known, f"{name}.{key}")


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
    specs = [agent_spec(agent) for agent in wanted(settings)]
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
