"""Settings of `tuner` and `author`: off, a shadow and a newcomer unless they say otherwise, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.installed import installed

from oven_core.errors import ConfigError
from oven_runs.settings.agents import agent_names, with_agent_rules
from oven_runs.settings.run_settings import Settings

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]


def test_the_tuner_is_a_newcomer_and_a_shadow_unless_the_settings_say_otherwise() -> None:
    llm = {"provider": "openai", "model": "m"}
    off = with_agent_rules(Settings(agents=("tuner", "divergence")))
    assert off.rules.shadow == () and off.rules.trusted == {"divergence": ("*",)}
    on = with_agent_rules(Settings.model_validate({"tuner": {"llm": llm}, "agents": ["tuner", "author"]}))
    assert on.rules.shadow == ("tuner",) and on.rules.trusted == {"author": ("*",)}
    assert with_agent_rules(on).rules == on.rules, "a resumed run reads what was resolved"
    entry = {"name": "tuner", "alone": ["grad.clip"]}
    granted = {"tuner": {"llm": llm, "shadow": False}, "agents": [entry]}
    rules = with_agent_rules(Settings.model_validate(granted)).rules
    assert rules.shadow == () and rules.alone == {"tuner": ("grad.clip",)}


@pytest.mark.parametrize(
    "wrong",
    [{"tuner": {"every": 0}}, {"tuner": {"actuators": []}}, {"author": {"prompts": 10_000}}, {"author": {"share": 2}}],
)
def test_settings_of_the_agents_that_ask_a_model_are_bounded(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="validation error"):
        Settings.model_validate(wrong)


@pytest.mark.parametrize("name", ["tuner", "author"])
def test_a_model_for_an_agent_that_the_run_does_not_have_is_refused(name: str) -> None:
    fields = {name: {"llm": {"provider": "openai", "model": "m"}}, "agents": ["divergence"]}
    with pytest.raises(
        ConfigError, match=f"{name} has settings but is not an agent of this run: add {name} to `agents`"
    ):
        with_agent_rules(Settings.model_validate(fields))


def test_a_provider_that_there_is_not_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match="the model of agent 'tuner': no provider named 'cluade'; did you mean"):
        with_agent_rules(Settings.model_validate({"tuner": {"llm": {"provider": "cluade", "model": "m"}}}))
    with pytest.raises(ConfigError, match=r"needs author\.llm\.base_url"):
        with_agent_rules(Settings.model_validate({"author": {"llm": {"provider": "compatible", "model": "m"}}}))


def test_agents_that_ask_a_model_are_started_only_if_one_is_set() -> None:
    assert not {"tuner", "author", "supervisor"} & agent_names(Settings())
    settings = Settings.model_validate({"tuner": {"llm": {"provider": "openai", "model": "m"}}})
    assert "tuner" in agent_names(settings) and "author" not in agent_names(settings)
