"""Settings: which layer wins, and what is said about each kind of bad input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import ConfigError, OvenError, UnknownNameError
from oven_core.removed_names import removal_message
from oven_core.security.credentials import Credentials
from oven_core.security.signing import load_keys
from oven_core.security.tls import trust_file
from oven_runs.settings.agents import agent_specs
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings
from oven_runs.settings.resolution import Recipe, resolve
from oven_runs.settings.run_settings import Settings


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    group_size: int = Field(default=8, ge=2)
    beta: float = 0.0


class ToyStart:
    def __init__(self, name: str) -> None:
        self.name = name
        self.label = "it was slowed down" if name.startswith("drill:") else ""

    def describe(self) -> str:
        return "as it should be"


class ToyRecipe:
    default_start = "drill:slow"
    settings_model = Options

    def parse_start(self, text: str, seed: int, options: object) -> ToyStart:
        if text not in ("drill:slow", "tuned"):
            raise ValueError(f"no start is called {text!r}; nearest: tuned")
        return ToyStart(text)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(name: Any) -> Recipe:
        if name != "grpo":
            raise UnknownNameError("recipe", str(name), ["grpo"])
        return ToyRecipe()

    monkeypatch.setattr("oven_runs.settings.resolution._load_recipe", recipe)
    monkeypatch.setattr("oven_core.plugins.find_plugins", lambda group: {"curriculum": None, "learning_rate": None})


def test_defaults() -> None:
    resolved = resolve()
    assert resolved.settings.start == "drill:slow"
    assert resolved.settings.agents == ("curriculum", "learning_rate")
    assert resolved.start is not None and resolved.start.label == "it was slowed down"


def test_the_later_layer_wins_and_the_others_stay(tmp_path: Path) -> None:
    config = tmp_path / "oven.yaml"
    config.write_text(
        "seed: 1\nsteps: 10\nminutes: 1\nrules: {window_ticks: 4, evidence_kinds: 1, cooldown_ticks: 9}\n"
    )
    resolved = resolve(
        earlier_settings={"headless": True, "seed": 9},
        config=config,
        environ={"OVEN_SET_STEPS": "20", "OVEN_SET_RULES__WINDOW_TICKS": "5", "OVEN_SET_MINUTES": "2", "OTHER": "x"},
        sets=["rules.window_ticks=6", "minutes=3", "recipe_options.beta=0.1"],
        flags={"minutes": 4.0, "port": None},
    ).settings
    assert (resolved.headless, resolved.seed, resolved.steps, resolved.minutes) == (True, 1, 20, 4.0)
    assert (resolved.rules.window_ticks, resolved.rules.evidence_kinds, resolved.rules.cooldown_ticks) == (6, 1, 9)
    assert resolved.recipe_options == {"beta": 0.1}


@pytest.mark.parametrize("name", ["rules.trials", "rules.trial_share", "rules.control_share"])
def test_a_removed_setting_gets_one_sentence_that_names_the_tag(name: str, tmp_path: Path) -> None:
    config = tmp_path / "oven.yaml"
    config.write_text(f"rules: {{{name.removeprefix('rules.')}: 1}}\n")
    for sets, file in (([f"{name}=all"], None), ([], config)):
        with pytest.raises(ConfigError) as caught:
            resolve(sets=sets, config=file)
        assert str(caught.value) == removal_message("setting", name) and "the tag evidence-1" in str(caught.value)


def test_agents_are_a_list_with_commas_files_or_none(tmp_path: Path) -> None:
    file = tmp_path / "scout.py"
    file.write_text("")
    settings = resolve(sets=[f"agents=learning_rate,{file}"]).settings
    assert [spec.name for spec in agent_specs(settings)] == ["learning_rate", "scout"]
    assert agent_specs(resolve(sets=["agents=[]"]).settings) == []


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            "rules.window_tick=5",
            "no setting 'rules.window_tick' (--set rules.window_tick); did you mean 'rules.window_ticks'",
        ),
        ("zzz=5", "known: recipe, start, seed"),
        (
            "recipe_options.group_size=1",
            "recipe_options.group_size = 1 (--set recipe_options.group_size): it should be greater than or equal to 2",
        ),
        (
            "rules.window_ticks=0",
            "rules.window_ticks = 0 (--set rules.window_ticks): it should be greater than or equal to 1",
        ),
        ("seed=-1", "seed = -1 (--set seed): it should be greater than or equal to 0"),
        ("kg=''", "it should be a folder that `oven-controller kg import` wrote, true or false"),
        ("nats=localhost:4222", "nats = 'localhost:4222'"),
        ("nats=nats://a:99999", "'nats://a:99999' is not a server's address"),
        ("steps=12345678901234567890123", "steps = 12345678901234567890123 (--set steps): it should be less than or"),
        ("seed", "KEY=VALUE, e.g. --set rules.window_ticks=5"),
        ("seed=[1", "--set seed=[1: the value is not valid YAML: did not find expected ',' or ']'"),
        ("committee.rule=lowerquantile", "it should be 'lower_quantile'"),
        ("recipe=grp", "no recipe named 'grp'; did you mean 'grpo'?"),
        ("start=tund", "--start tund: no start is called 'tund'; nearest: tuned"),
        ("agents=[learnig_rate]", "no agent named 'learnig_rate'; did you mean 'learning_rate'?"),
    ],
)
def test_bad_settings(sets: str, words: str) -> None:
    with pytest.raises(OvenError) as caught:
        resolve(sets=[sets])
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\nrules: {a: [1\n", ", line 3, column 1:"),
        ("seed: 1\n  steps: 2\n", ", line 2, column 8:"),
        ("- seed\n", "contains a list; it must be `key: value` lines"),
        ("seed\n", "contains only the value 'seed'; it must be `key: value` lines"),
        ("seed: 1\nsteps: 2\nseed: 3\n", ", line 3, column 1: the key 'seed' is a duplicate, first used in line 1"),
        ("rules:\n  majority: 1\n  majority: .6\n", ", line 3, column 3: the key 'majority' is a duplicate, first"),
        ("agents: " + "[" * 5000, ", line 1, column 40: it is nested more than 32 deep"),
        ("start: 2026-99-01\n", ", line 1, column 8: '2026-99-01' cannot be read: month must be in 1..12"),
        ("steps: " + "9" * 5000, ", line 1, column 8: '99999999999999999999' cannot be read: Exceeds the limit"),
        ("rules: &x {a: *x}\n", ", line 1, column 15: the alias 'x' is inside the value that it refers to"),
        ("#" * 2_000_000, "it is larger than the limit of 1,048,576 bytes"),
        ("seed: 1\nsteps: 0\n", "oven.yaml): it should be greater than or equal to 1"),
        ("rules:\n  window_tick: 3\n", "did you mean 'rules.window_ticks'?"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "oven.yaml"
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(config=config)
    assert str(config) in str(caught.value)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        resolve(config=tmp_path / "nothere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"start: \xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        resolve(config=tmp_path / "latin.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert resolve(config=tmp_path / "empty.yaml").settings == resolve().settings


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for, and a device never ends."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path, what in ((pipe, "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(ConfigError, match=f"cannot read --config {path}: it is {what}, but must be a regular file"):
            resolve(config=path)
    with pytest.raises(ConfigError, match=r"cannot read the credentials .*: it is a pipe"):
        Credentials.load(pipe)
    with pytest.raises(ConfigError, match=r"cannot read the public keys .*: it is a pipe"):
        load_keys(pipe)
    with pytest.raises(ConfigError, match=r"cannot read the certificate authority .*: it is a pipe"):
        trust_file(pipe)


def test_shadow_agents_are_listed_in_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "scout.py"
    file.write_text("")
    both = f"agents=[learning_rate, {{name: {file}, shadow: true}}, {{name: curriculum, shadow: false}}]"
    settings = resolve(sets=[both, "rules.shadow=[curriculum, guest]"]).settings
    assert settings.agents == ("learning_rate", str(file), "curriculum")
    assert settings.rules.shadow == ("guest", "scout")
    assert [spec.name for spec in agent_specs(settings)] == ["learning_rate", "scout", "curriculum"]
    earlier = settings.model_dump(mode="json")
    again = resolve(sets=["agents=[learning_rate]"], earlier_settings=earlier).settings
    assert (again.agents, again.rules.shadow) == (("learning_rate",), ("guest", "scout")), (
        "kept until something else is said"
    )
    with pytest.raises(UnknownNameError, match="no agent named 'learnig_rate'"):
        resolve(sets=["agents=[{name: learnig_rate, shadow: true}]"])
    with pytest.raises(ConfigError, match="shadw"):
        resolve(sets=["agents=[{name: learning_rate, shadw: true}]"])


@pytest.mark.parametrize(
    ("agent", "member", "words"),
    [
        ("judge", "judge", "committee member 'judge' has the name of an agent; rename it in committee.members"),
        ("mine", "learner", "committee member 'learner' has the name of a role of the stack"),
        ("kg", "judge", "agent 'kg' has the name of a role of the stack; rename its file"),
        ("mine", "a judge", "committee member 'a judge' is not a usable name"),
    ],
)
def test_agents_members_and_roles_need_different_names(tmp_path: Path, agent: str, member: str, words: str) -> None:
    (tmp_path / f"{agent}.py").touch()
    members = {member: MemberSettings(provider="openai", model="m")}
    settings = Settings(agents=(str(tmp_path / f"{agent}.py"),), committee=CommitteeSettings(members=members))
    with pytest.raises(ConfigError, match=words):
        agent_specs(settings)


def test_replicas_of_the_log_need_a_cluster() -> None:
    with pytest.raises(ConfigError, match="stream_replicas = 3 needs a cluster"):
        resolve(sets=["stream_replicas=3"], attached=True)
    urls = "nats://a:4222,nats://b:4222,nats://c:4222"
    settings = resolve(sets=["stream_replicas=3", f"nats={urls}", "meshes=3"], attached=True).settings
    assert (settings.stream_replicas, settings.meshes, settings.nats) == (3, 3, urls)


def test_an_attached_script_starts_in_observe() -> None:
    resolved = resolve(attached=True, sets=["rules.window_ticks=5"])
    assert (resolved.settings.recipe, resolved.settings.rules.autonomy) == ("attached", "observe")
    assert resolve(attached=True, sets=["rules.autonomy=auto"]).settings.rules.autonomy == "auto"
    with pytest.raises(ConfigError, match="no meaning for your own script"):
        resolve(attached=True, sets=["recipe_options.beta=1"])


def test_resolved_settings_resolve_to_themselves() -> None:
    resolved = resolve(sets=["seed=3", "recipe_options.beta=0.1"])
    assert resolve(earlier_settings=resolved.settings.model_dump(mode="json")).settings == resolved.settings


def test_two_agents_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "learning_rate.py"
    file.write_text("")
    with pytest.raises(ConfigError, match="two agents are called 'learning_rate'"):
        agent_specs(resolve(sets=[f"agents=[learning_rate, {file}]"]).settings)
