"""Members of the committee in the settings: what each kind needs, whose API, and what is refused with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_controller.cli.main import run as invoke
from oven_core.errors import ConfigError
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue, endpoint_of, key_of
from oven_runs.settings.resolution import resolve
from oven_runs.settings.run_settings import Settings


def settings(member: str, *more: str) -> Settings:
    sets = ("agents=[]", f"committee.members.critic={{{member}}}", *more)
    return resolve(sets=sets, attached=True).settings


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("provider: cluade, model: m", "committee member 'critic': no provider named 'cluade'; did you mean 'claude'?"),
        ("provider: claude, model: m, role: critc", "it should be 'critic', 'adversary'"),
        ("provider: claude, model: m, kind: verifer", "it should be 'llm', 'rule' or 'verifier'"),
        ("model: m", "a member of the kind llm needs `provider`"),
        ("provider: openai", "a member of the kind llm needs `model`"),
        ("provider: compatible, model: m", "has no address: the provider 'compatible' needs committee.members.critic"),
        ("provider: openai, model: m, top_logprobs: 21", "top_logprobs = 21 .*: it should be less than or equal to 20"),
        (
            "provider: openai, model: m, domain: chess",
            "`domain` is only for the role specialist, but the role is critic",
        ),
        ("provider: openai, model: m, rubric: nothere.txt", "'critic': nothere.txt: No such file or directory"),
        ("provider: openai, model: m, rule: exact", "`rule` has no meaning for a member of the kind llm"),
        ("provider: openai, modle: m", "there is no setting 'committee.members.critic.modle' .*critic.model'"),
        ("kind: rule", "a member of the kind rule needs `rule`"),
        ("kind: rule, rule: exact, provider: openai", "`provider` has no meaning for a member of the kind rule"),
        ("kind: rule, rule: exct", "critic': no rule named 'exct'; did you mean 'exact'"),
        ("kind: rule, rule: 'nothere.py:good'", "the rule of the committee member 'critic': nothere.py: No such file"),
    ],
)
def test_an_invalid_setting_names_the_value_and_the_remedy(member: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(member)


def test_a_key_in_the_wrong_place_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("key_env: sk-canary-1", "base_url: 'https://me:sk-canary-1@host/v1'"):
        member = f"committee.members.critic={{provider: openai, model: m, {wrong}}}"
        with pytest.raises(SystemExit) as ended:
            invoke(["doctor", "--judges", "--set", member])
        assert ended.value.code == 2
    output = capsys.readouterr()
    assert "the name of an environment variable, not the key itself" in output.err
    assert "canary" not in output.err + output.out


def test_a_dry_run_checks_keys_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.txt"
    dry = ["up", "--no-learner", "--dry-run", "--set", "agents=[]", "--set"]
    for member, words in (
        ("provider: grok, model: m, key_env: NOT_THERE", "environment variable NOT_THERE is not set; export it"),
        (f"provider: openai, model: m, rubric: {rubric}", f"{rubric}: No such file or directory"),
    ):
        with pytest.raises(SystemExit) as ended:
            invoke([*dry, f"committee.members.critic={{{member}}}"])
        assert ended.value.code == 2 and words in capsys.readouterr().err
    rubric.write_text(" \n")
    with pytest.raises(SystemExit):
        invoke([*dry, f"committee.members.critic={{provider: openai, model: m, rubric: {rubric}}}"])
    assert f"{rubric} is empty; describe in it what to look for" in capsys.readouterr().err


def overlay(folder: Path, text: str) -> Path:
    file = folder / "providers.yaml"
    file.write_text(text)
    return file


def test_a_users_catalogue_is_merged_by_provider_and_model(tmp_path: Path) -> None:
    file = overlay(
        tmp_path,
        """
deepseek:
  models:
    deepseek-chat: {schema: none, price: {input: 1, output: 2}}
    "deepseek-*": {top_logprobs: 1}
openai: {base_url: "https://proxy.example/v1"}
together: {wire: openai, base_url: "https://api.together.xyz/v1", key_env: TOGETHER_KEY, top_logprobs: 5}
""",
    )
    known = catalogue(file)

    def lookup(provider: str, model: str):  # type: ignore[no-untyped-def]
        return endpoint_of("critic", MemberSettings(provider=provider, model=model), known)

    chat = lookup("deepseek", "deepseek-chat")
    assert (chat.schema_mode, chat.top_logprobs, chat.price.output) == ("none", 20, 2.0)
    assert (chat.key_env, chat.token_limit_field) == ("DEEPSEEK_API_KEY", "max_tokens"), "the rest is as it was"
    assert lookup("deepseek", "deepseek-reasoner").top_logprobs == 0, "a name goes before a pattern"
    assert lookup("deepseek", "deepseek-next").top_logprobs == 1
    assert lookup("together", "m").key_env == "TOGETHER_KEY"
    assert key_of("critic", lookup("openai", "m"), {"OPENAI_API_KEY": "k"}) == NO_KEY, "it moved, and names no key"
    assert catalogue()["openai"].key_env == "OPENAI_API_KEY"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("openai: 3", "openai is '3'; expected a mapping"),
        ("mine: {base_url: 'http://h/v1'}", "the provider mine is not in judge_providers.yaml, so it needs `wire`"),
        ("openai: {top_logprobs: 21}", "openai.top_logprobs = 21 .*less than or equal to 20"),
        ("openai: {schema: json}", "openai.schema = 'json' .*'strict', 'json_object' or 'none'"),
        ("openai: {kye_env: K}", "there is no setting 'openai.kye_env' .*did you mean 'openai.key_env'"),
        ("openai: {models: {m: {price: {input: -1, output: 1}}}}", r"openai.models.m.price.input = -1"),
        ("openai: {key_env: sk-canary-1}", r"openai.key_env \(.*not the key itself"),
        ("- openai", "contains a list"),
    ],
)
def test_an_invalid_user_catalogue_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as wrong:
        catalogue(overlay(tmp_path, text))
    assert str(tmp_path) in str(wrong.value), "it names the file"
    assert "canary" not in str(wrong.value)


def test_file_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rubric.txt").write_text("Look for rhymes.")
    (tmp_path / "rules.py").write_text("def short(completions, **_): ...\nlong = lambda **_: ...\n")
    (tmp_path / "providers.yaml").write_text("openai: {top_logprobs: 3}")
    committee = settings(
        "provider: openai, model: m, rubric: rubric.txt",
        "committee.members.short={kind: rule, rule: 'rules.py:short'}",
        "committee.members.long={kind: rule, rule: 'rules.py:long'}",
        "committee.providers=providers.yaml",
    ).committee
    assert committee.members["critic"].rubric == str(tmp_path / "rubric.txt")
    assert committee.members["short"].rule == f"{tmp_path / 'rules.py'}:short"
    assert committee.providers == str(tmp_path / "providers.yaml")
    assert list(committee.judges) == ["critic"], "a rule has no process, no key and no endpoint"
    with pytest.raises(ConfigError, match=r"no function in rules.py named 'shrot'; did you mean 'short'"):
        settings("kind: rule, rule: 'rules.py:shrot'")
