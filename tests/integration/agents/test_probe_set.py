"""The frontier calibrator's answers, fetched over real HTTP: once, whole, and with a sentence for what there is not."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.judge_endpoint import Endpoint

from oven_core.errors import ConfigError, ProcessError
from oven_llm.judges import probe_set_process
from oven_runs.home import probe_set
from oven_runs.settings.committee_settings import FrontierSettings

KEY = "sk-canary-5513ab"
PROMPTS = ("What is a week?", "Naïve café ☕?", "How many?")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint(seed=3).running() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("CANARY", KEY)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n\n")
    return tmp_path


def configure(folder: Path, **fields: object) -> FrontierSettings:
    settings = FrontierSettings.model_validate({"prompts": str(folder / "prompts.txt"), "key_env": "CANARY", **fields})
    (folder / "config.json").write_text(json.dumps({"committee": {"frontier": settings.model_dump()}}))
    return settings


def key(settings: FrontierSettings) -> str:
    return probe_set.key_of(settings.provider, settings.base_url, settings.model, PROMPTS)


async def fetch() -> None:
    await asyncio.to_thread(probe_set_process.fetch.main, [], standalone_mode=False)


async def test_replies_are_fetched_once_with_alternatives_and_stay_private(
    endpoint: Endpoint, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = configure(folder, provider="compatible", model="m@429x1", base_url=endpoint.openai_url, top_logprobs=5)
    await fetch()
    fetched = probe_set.read(folder, key(settings))
    assert fetched is not None and any(probe.tokens for probe in fetched.probes) and not fetched.missing_features
    assert [probe.prompt for probe in fetched.probes] == list(PROMPTS)
    for probe in fetched.probes:
        assert b"".join(bytes.fromhex(token.hex) for token in probe.tokens).decode() == probe.completion
        assert all(len(token.top) == 5 for token in probe.tokens)
    requests = len(endpoint.requests)
    assert requests == len(PROMPTS) + 1, "one was answered with 429 first"
    assert all("response_format" not in request for request in endpoint.requests)
    await fetch()
    assert len(endpoint.requests) == requests
    path = probe_set.path_of(folder, key(settings))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KEY not in path.read_text()
    assert not [word for word in (KEY, *PROMPTS) if word in caplog.text]
    path.write_text("{")
    await fetch()
    assert probe_set.read(folder, key(settings)) == fetched and "is damaged" in caplog.text


@pytest.mark.parametrize("provider", ["claude", "compatible"])
async def test_without_log_probabilities_the_set_has_texts_and_a_note(
    endpoint: Endpoint, folder: Path, provider: str
) -> None:
    endpoint.top_logprobs = 0
    url = endpoint.url if provider == "claude" else endpoint.openai_url
    settings = configure(folder, provider=provider, model="m", base_url=url)
    await fetch()
    fetched = probe_set.read(folder, key(settings))
    assert fetched is not None and not any(probe.tokens for probe in fetched.probes) and len(fetched.probes) == 3
    assert fetched.missing_features == (
        f"m at {provider} returns no log-probabilities: only bits per byte can be measured, not the divergence"
    )


async def test_too_few_replies_leave_no_set(endpoint: Endpoint, folder: Path) -> None:
    settings = configure(folder, provider="compatible", model="m@401x2,400x1", base_url=endpoint.openai_url)
    with pytest.raises(
        ProcessError,
        match=r"m@401x2,400x1 replied to only [01] of 3 prompts.*the run continues without frontier metrics",
    ):
        await fetch()
    assert probe_set.read(folder, key(settings)) is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "\n \n", "has no prompts; write one per line"),
        ("p.txt", "a\nb\na\n", "has a duplicate prompt"),
        ("p.txt", "\n".join(map(str, range(513))), "513 prompts, but at most 512 are allowed"),
        ("p.jsonl", '{"prompt": "a"}\n{"text": "b"}\n', 'p.jsonl:2 is not an object with "prompt"'),
        (".", None, "it is a folder"),
        ("nothing", None, "cannot read the prompts of committee.frontier"),
    ],
)
def test_unusable_prompts_are_refused(folder: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        probe_set.read_prompts(folder / name)
