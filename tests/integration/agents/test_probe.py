"""One call to each provider's endpoint as it behaves: what it lacks is found, said, and asked for no more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.judge_endpoint import Endpoint

from oven_core.protocol.committee_requests import Completion, ScoreRequest
from oven_llm.judges.judge import Judge
from oven_llm.judges.judge_probe import ProbeResult, probe
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.providers import connect
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue, endpoint_of

KEYS = {
    name: f"sk-canary-{name}" for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "DEEPSEEK_API_KEY", "XAI_API_KEY")
}
PATHS = {"claude": "", "openai": "/v1", "deepseek": "/deepseek/v1", "grok": "/grok/v1", "compatible": "/v1"}
VARIABLES = dict(zip(("claude", "openai", "deepseek", "grok"), KEYS, strict=True))


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint().running() as running:
        yield running


def overlay(endpoint: Endpoint, folder: Path) -> Path:
    """The catalogue with every provider at the endpoint, under the provider's own manners."""
    entries = {name: {"base_url": endpoint.url + PATHS[name], "key_env": key} for name, key in VARIABLES.items()}
    entries["claude"]["price"] = {"input": 3.0, "output": 15.0}  # type: ignore[assignment]
    file = folder / "providers.yaml"
    file.write_text(json.dumps(entries))  # JSON is YAML
    return file


def provider(endpoint: Endpoint, name: str, model: str, top_logprobs: int = 0) -> RemoteModel:
    settings = MemberSettings(provider=name, model=model, base_url=endpoint.url + PATHS[name])
    return connect("critic", endpoint_of("critic", settings, catalogue()), NO_KEY, top_logprobs)


async def probed(endpoint: Endpoint, name: str, model: str = "m", top_logprobs: int = 0) -> ProbeResult:
    remote = provider(endpoint, name, model, top_logprobs)
    try:
        return await probe(remote, timeout_s=20)
    finally:
        await remote.close()


@pytest.mark.parametrize(
    ("name", "model", "wanted", "schema", "expected_logprobs", "lacks"),
    [
        ("claude", "m", 0, "strict", 0, ()),
        ("claude", "m", 5, "strict", 0, ("returns no log-probabilities",)),
        ("openai", "m", 20, "strict", 20, ()),
        ("openai", "o3", 20, "strict", 0, ("returns no log-probabilities",)),
        ("deepseek", "deepseek-chat", 20, "json_object", 20, ("does not support JSON Schema",)),
        (
            "deepseek",
            "deepseek-reasoner",
            20,
            "json_object",
            0,
            ("does not support JSON Schema", "returns no log-probabilities"),
        ),
        ("grok", "grok-3", 20, "strict", 8, ("returns at most 8 alternatives per token, not 20",)),
        ("compatible", "m", 3, "strict", 3, ()),
    ],
)
async def test_features_that_the_catalogue_denies_are_not_requested(
    endpoint: Endpoint, name: str, model: str, wanted: int, schema: str, expected_logprobs: int, lacks: tuple[str, ...]
) -> None:
    """One request, and none refused, although the endpoint has each provider's own refusals."""
    result = await probed(endpoint, name, model, wanted)
    assert result.can_judge and (result.schema, result.top_logprobs) == (schema, expected_logprobs)
    assert [words for words in lacks if not any(words in lack for lack in result.missing_features)] == []
    assert len(result.missing_features) == len(lacks) + 1, "and the price, which nobody knows of this address"
    assert endpoint.served == {"ok": 1}


async def test_a_refused_feature_is_requested_once(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.formats, endpoint.top_logprobs = {"json_object"}, 0
    remote = provider(endpoint, "compatible", "m", 5)
    result = await probe(remote, timeout_s=20)
    assert result.can_judge and (result.schema, result.top_logprobs) == ("json_object", 0)
    assert sum("does not support JSON Schema" in r.message or "no log-prob" in r.message for r in caplog.records) == 2
    before = endpoint.served["ok"], endpoint.served.total()
    request = ScoreRequest(
        run="r", group="g", prompt="?", completions=(Completion(id="a1", text="worth 7"),), deadline_s=20
    )
    for _ in range(2):
        assert await Judge(Rubric(), remote).score(request, CallTally()) == {"a1": 0.7}
    await remote.close()
    assert (endpoint.served["ok"], endpoint.served.total()) == (before[0] + 2, before[1] + 2)
    assert len(caplog.records) == 2, "nor said again"


async def test_silently_ignored_features_are_detected(endpoint: Endpoint) -> None:
    """As `transformers serve` does: the answer is right only because the model is."""
    endpoint.ignores = True
    result = await probed(endpoint, "compatible", "m", 5)
    assert result.can_judge and (result.schema, result.top_logprobs) == ("none", 0)
    lacks = " ".join(result.missing_features)
    assert "accepts a JSON schema but does not follow it" in lacks and "returns no log-probabilities" in lacks
    assert endpoint.served == {"ok": 1}


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("401", "auth", "set key_env to the environment variable"),
        ("404", "not_found", "check `model`"),
        ("400x9", "bad_request", "rejects even a plain request"),
        ("html", "bad_response", "does not implement the"),
        ("prose", "bad_json", "does not return verdicts in the required format"),
        ("refusal", "refusal", "use another model"),
        ("529x9", "overloaded", "try again later"),
    ],
)
@pytest.mark.parametrize("name", ["claude", "compatible"])
async def test_a_failed_probe_has_a_reason_and_a_remedy(
    endpoint: Endpoint, name: str, script: str, kind: str, words: str
) -> None:
    result = await probed(endpoint, name, f"m@{script}")
    assert (result.can_judge, result.failure) == (False, kind)
    assert words in result.remedy


async def test_the_probe_of_a_hanging_endpoint_ends_in_time(endpoint: Endpoint) -> None:
    remote = provider(endpoint, "claude", "m@hangx9")
    result = await probe(remote, timeout_s=0.5)
    await remote.close()
    assert (result.failure, result.detail) == ("timeout", "no reply within 0.5 s")


async def test_tokens_have_their_alternatives(endpoint: Endpoint) -> None:
    remote = provider(endpoint, "openai", "m", 3)
    tally = CallTally()
    result = await probe(remote, tally=tally, timeout_s=20)
    await remote.close()
    assert result.usage is not None and tally.usages == [result.usage], "a probe is booked like any call"
    assert result.top_logprobs == 3


class Watched(Endpoint):
    """Looks at the command lines of all processes while a request is with it: whoever asked is among them."""

    seen = ""

    def _answer(self, user: str) -> str:
        for process in psutil.process_iter(["cmdline"]) if " member --probe" not in self.seen else ():
            self.seen += " ".join(process.info["cmdline"] or []) + "\n"
        return super()._answer(user)


async def doctor(endpoint: Endpoint, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")}
    env |= KEYS | {"OVEN_HOME": str(folder / "home"), "OPENAI_LOG": "debug", "ANTHROPIC_LOG": "debug"}
    command = [sys.executable, "-m", "oven_controller.cli.main", "doctor", "--judges", *args]
    return await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, cwd=folder)


async def test_doctor_probes_every_judge_and_shows_no_key(tmp_path: Path) -> None:
    endpoint = Watched()
    async with endpoint.running():
        await _doctor_with_every_provider(endpoint, tmp_path)


async def _doctor_with_every_provider(endpoint: Watched, tmp_path: Path) -> None:
    members: dict[str, dict[str, Any]] = {
        "critic": {"provider": "claude", "model": "m"},
        "tricks": {"provider": "openai", "model": "m@echo200", "role": "adversary"},
        "expert": {"provider": "deepseek", "model": "deepseek-reasoner", "role": "specialist", "domain": "chess"}
        | {"logprobs": True},
        "form": {"provider": "grok", "model": "m@echo401x9", "role": "style"},
        "mine": {"provider": "compatible", "model": "m@echo400x9", "base_url": endpoint.openai_url},
    }
    members["mine"]["key_env"] = "OPENAI_API_KEY"
    config = tmp_path / "judges.yaml"
    providers = str(overlay(endpoint, tmp_path))
    config.write_text(json.dumps({"committee": {"members": members, "providers": providers}}))
    done = await doctor(endpoint, tmp_path, "--config", str(config), "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    judges = report["judges"]
    assert (report["ready"], list(judges)) == (False, list(members))
    failed = {"tricks": "bad_json", "form": "auth", "mine": "bad_request"}
    assert {name: judge["failure"] for name, judge in judges.items() if not judge["can_judge"]} == failed
    assert judges["critic"]["usd_per_million"] == [3.0, 15.0]
    assert judges["expert"]["schema"] == "json_object" and len(judges["expert"]["missing_features"]) == 2
    # Each was sent its own provider's key, and none is anywhere else.
    sent = {header["Authorization"].removeprefix("Bearer ") for header in endpoint.headers}
    assert sent == set(KEYS.values())
    table = await doctor(endpoint, tmp_path, "--config", str(config), "--set", "committee.members.form.model=m")
    assert table.returncode == 1 and "critic" in table.stdout and "3 / 15" in table.stdout
    assert "mine: bad_request" in table.stdout and "→" in table.stdout
    assert " member --probe" in endpoint.seen, "it asked while the processes were looked at"
    output = done.stdout + done.stderr + table.stdout + table.stderr + endpoint.seen
    assert "canary" not in output
    leaks = [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    assert leaks == []
