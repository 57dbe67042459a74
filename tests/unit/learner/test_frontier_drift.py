"""The calibrator in an attached trainer: published as change, read by no loss, and never in the way."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.support.attached import THIRD_PARTY
from tests.support.tiny_grpo import grpo
from transformers import TrainerCallback

from oven_core.protocol.rules import Rules
from oven_learner.hf import attach as attaching
from oven_learner.hf.hooks.frontier_drift import BITS, KL
from oven_learner.link.find_controller import Connection
from oven_learner.testing import FakeLink
from oven_runs.home import probe_set
from oven_runs.home.probe_set import Alternative, Probe, ProbeSet, Token
from oven_runs.settings.committee_settings import CommitteeSettings, FrontierSettings

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

PROMPTS = ("ab", "cd")
LIKELY = (Alternative(hex=b"e".hex(), logprob=-0.1), Alternative(hex=b"f".hex(), logprob=-3.0))
PROBES = ProbeSet(
    provider="compatible",
    model="frontier",
    probes=tuple(
        Probe(prompt=prompt, completion="efg", tokens=tuple(Token(hex=b.encode().hex(), top=LIKELY) for b in "efg"))
        for prompt in PROMPTS
    ),
)


class There(Connection):
    """A run's settings, and a link that keeps what is said."""

    line: ClassVar[FakeLink] = FakeLink()

    def link(self) -> Any:
        return self.line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run's, in which `attach` finds the settings of the calibrator."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    settings = FrontierSettings(
        provider="compatible", model="frontier", base_url="http://127.0.0.1:1/v1", every=2,
        prompts=str(tmp_path / "prompts.txt"),
    )  # fmt: skip
    there = There(url="", run="r", rules=Rules(autonomy="observe"), committee=CommitteeSettings(frontier=settings))
    monkeypatch.setattr(attaching, "find_controller", lambda *_, **__: (True, there))
    monkeypatch.setattr(There, "line", FakeLink())
    return tmp_path


def key(folder: Path) -> str:
    return probe_set.key_of("compatible", "http://127.0.0.1:1/v1", "frontier", PROMPTS)


class At(TrainerCallback):
    """Does something after a step."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self._step, self._do = step, do

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._step:
            self._do()


def trained(folder: Path, *, attached: bool = True, late: int = 0) -> tuple[Any, list[dict[str, float]]]:
    """The weights after five steps, and the calibrator's metrics of each."""
    job = grpo(folder / "out", max_steps=5, learning_rate=0.05)
    if late:
        job.add_callback(At(late, lambda: probe_set.write(folder, key(folder), PROBES)))
    if attached:
        attaching.attach(job)
    job.train()
    seen = [
        {name: value for name, value in observation.metrics.items() if name.startswith("frontier/")}
        for observation in There.line.observed()
    ]
    return job, seen


def test_probing_changes_no_bit_and_publishes_changes_since_step_0(folder: Path) -> None:
    plain, _ = trained(folder, attached=False)
    probe_set.write(folder, key(folder), PROBES)
    job, seen = trained(folder)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, job.model.state_dict()[name]), name
    assert [sorted(metrics) for metrics in seen] == [
        [], sorted((BITS, BITS + "_level", KL, KL + "_level")), [], sorted((BITS, BITS + "_level", KL, KL + "_level")),
        sorted((BITS, BITS + "_level", KL, KL + "_level")),
    ], "every second step, and the last"  # fmt: skip
    first = json.loads((folder / "probes" / f"{key(folder)}.begin.json").read_text())
    assert first["step"] == 0
    for metrics in filter(None, seen):
        assert metrics[BITS] == pytest.approx(metrics[BITS + "_level"] - first["bits_per_byte"]) and metrics[BITS]
        assert metrics[KL] == pytest.approx(metrics[KL + "_level"] - first["kl"]) and metrics[KL]


def test_answers_that_come_late_are_waited_for_by_no_step(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, seen = trained(folder, late=2)
    assert [bool(metrics) for metrics in seen] == [False, True, False, True, True]
    begun = next(metrics for metrics in seen if metrics)
    assert begun[BITS] == begun[KL] == 0
    assert "the answers arrived at step" in caplog.text


def test_a_damaged_set_costs_the_metrics_and_nothing_else(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    probe_set.write(folder, key(folder), PROBES)
    probe_set.path_of(folder, key(folder)).write_text('{"probes": []}')
    with caplog.at_level(logging.WARNING):
        job, seen = trained(folder)
    assert job.state.global_step == 5 and not any(seen)
    assert "is damaged" in caplog.text
