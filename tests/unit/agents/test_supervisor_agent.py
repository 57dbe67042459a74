"""The agent `supervisor` by itself: when it asks and how often, what is too late, what is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.installed import installed
from tests.support.supervised import KEY, ONSET, SCALE, observed, settings, started

from oven_agents.runtime.agent_loader import load, load_repeatable, repeatable_agents
from oven_agents.runtime.companion import RunContext
from oven_agents.sdk.agent_session import Session
from oven_controller.stack.process_plan import make_pools
from oven_core.errors import ConfigError
from oven_core.protocol.messages import AgentStatus, Receipt, Vote
from oven_llm.diagnosis.diagnosis_store import DiagnosisRequest, DiagnosisStore
from oven_llm.diagnosis.graph_diagnosis import GraphView
from oven_llm.diagnosis.model_answer import Diagnosis, Evidence, ProposedChange, RevertIf
from oven_llm.diagnosis.model_diagnosis import DiagnosisResult
from oven_llm.diagnosis.supervisor_agent import Supervisor
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.orchestrator import RunResult
from oven_runs.settings.agents import agent_spec, agent_specs, with_agent_rules
from oven_runs.settings.run_settings import Settings

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]
RESULT = RunResult({}, 1, Usage(0, 0), Usage(0, 0), 0.1, "final", None)
PROOF = Evidence.model_validate({"metric": "loss", "from": ONSET, "to": ONSET + 9, "value": 2.1})
DIAGNOSIS = Diagnosis("lr_too_high", (PROOF,), SCALE, 0.1, RevertIf(metric="loss", above=2.3), 0.7)


class Alone:
    """In a session without a bus; its companion is made, and never run: answers are laid on the desk."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.agent = Supervisor()
        config = settings("http://127.0.0.1:9/v1", **options)
        config["supervisor"]["expires"] = 8

        async def no_graph(endpoint: str, request: bytes) -> None:
            return None

        self.beside = self.agent.begin(RunContext("supervisor", folder, config, no_graph))
        self.session = Session(self.agent, "supervisor")
        self.session.absorb(started())
        self.tick = self.receipts = 0

    def ticks(self, until: int, **metrics: float) -> list[Any]:
        answers: list[Any] = []
        while self.tick < until:
            self.tick += 1
            seen = observed(self.tick)
            self.session.absorb(seen.model_copy(update={"metrics": seen.metrics | metrics}))
            answers += self.session.react()
        assert not self.session.problems
        return answers

    def answered(self, result: DiagnosisResult | ModelFailure) -> None:
        self.agent.slot.set_result(result)

    def receipt(self, value: float, before: float = 1.0) -> None:
        self.receipts += 1
        body = Receipt(
            incarnation=1, n=1000 + self.receipts, decision_id="d", actuator=SCALE, status="applied", before=before,
            after=value, tick=self.tick, step=self.tick,
        )  # fmt: skip
        self.session.absorb(body)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alone]:
    monkeypatch.setenv("OVEN_TEST_KEY", KEY)
    made = Alone(tmp_path)
    yield made
    assert made.beside is not None
    made.beside.close()


def votes(answers: list[Any]) -> list[Vote]:
    return [item for item in answers if isinstance(item, Vote)]


def notices(answers: list[Any]) -> str:
    return "\n".join(item.reason for item in answers if isinstance(item, AgentStatus) and item.state == "notice")


def test_a_new_alarm_is_asked_about_once_and_the_answer_becomes_a_vote(alone: Alone) -> None:
    assert not votes(alone.ticks(ONSET)) and alone.agent.slot.posted_tick == -1, "nothing changed yet"
    alone.ticks(ONSET + 10)
    asked_tick = alone.agent.slot.posted_tick
    assert ONSET < asked_tick <= ONSET + 10 and not alone.agent.slot.is_free
    alone.answered(DiagnosisResult(DIAGNOSIS, "", "", RESULT))
    (vote,) = votes(alone.ticks(ONSET + 11))
    assert (vote.actuator, vote.value, vote.confidence, vote.target) == (SCALE, 0.1, 0.7, "loss")
    assert vote.rationale == (
        f"lr_too_high: loss 2.1 at ticks {ONSET} to {ONSET + 9}; revert if loss is above 2.3 (diagnosis 1, asked at "
        f"tick {asked_tick})"
    )
    assert vote.expected_change < 0 and "symptom:update_ratio_high" in vote.evidence
    assert alone.agent.version == "1 (m)"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            DiagnosisResult(None, "evidence_differs", "loss is 2 in the log, 9 in the answer", RESULT),
            "abstains: loss is 2",
        ),
        (
            DiagnosisResult(Diagnosis("none", (), "", None, None, 0.9), "", "", RESULT),
            "nothing is wrong",
        ),
        (
            DiagnosisResult(Diagnosis("judge_biased", (PROOF,), "", None, None, 0.5), "", "", RESULT),
            "no knob would help",
        ),
        (ModelFailure("timeout", "no answer"), "abstains: timeout"),
    ],
)
def test_an_answer_without_a_change_is_a_notice(
    alone: Alone, result: DiagnosisResult | ModelFailure, message: str
) -> None:
    alone.ticks(ONSET + 10)
    alone.answered(result)
    answers = alone.ticks(ONSET + 11)
    assert not votes(answers) and message in notices(answers)


def test_an_alarm_that_recovers_and_fires_again_is_asked_about_again(alone: Alone) -> None:
    nothing = DiagnosisResult(Diagnosis("none", (), "", None, None, 0.9), "", "", RESULT)

    def questions(until: int, **metrics: float) -> list[int]:
        result: list[int] = []
        while alone.tick < until:
            alone.ticks(alone.tick + 1, **metrics)
            if not alone.agent.slot.is_free:
                result.append(alone.agent.slot.posted_tick)
                alone.answered(nothing)
        return result

    calm = {"loss": 2.0, "learning_rate": 0.003, "optim/update_ratio": 0.005}
    assert questions(ONSET + 30), "the ratio is ten times as high"
    assert questions(ONSET + 60, **calm), "and falls back"
    assert not questions(ONSET + 100, **calm)
    assert len(questions(ONSET + 120, **calm | {"optim/update_ratio": 0.5})) == 1


def test_an_answer_is_void_if_the_knob_has_changed_since(alone: Alone) -> None:
    alone.ticks(ONSET + 10)
    alone.receipt(2.0)
    alone.answered(DiagnosisResult(DIAGNOSIS, "", "", RESULT))
    answers = alone.ticks(ONSET + 11)
    assert not votes(answers) and "optimizer.lr_scale has changed" in notices(answers)


def test_a_change_is_reverted_when_its_revert_condition_holds(alone: Alone) -> None:
    alone.ticks(ONSET + 10)
    alone.answered(DiagnosisResult(DIAGNOSIS, "", "", RESULT))
    assert votes(alone.ticks(ONSET + 11))
    alone.receipt(0.1)
    assert not votes(alone.ticks(ONSET + 14, loss=2.2)), "the bound is not met"
    (back,) = votes(alone.ticks(ONSET + 22, loss=2.6))
    assert (back.actuator, back.value) == (
        SCALE,
        1.0,
    ) and "says to revert the change if loss is above 2.3" in back.rationale


def test_a_knob_that_someone_else_changed_is_not_reverted(alone: Alone) -> None:
    alone.ticks(ONSET + 10)
    alone.answered(DiagnosisResult(DIAGNOSIS, "", "", RESULT))
    alone.ticks(ONSET + 11)
    alone.receipt(0.1)
    alone.receipt(0.5, 0.1)
    assert not votes(alone.ticks(ONSET + 30, loss=2.6))


def test_the_limit_on_diagnoses_counts_across_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_TEST_KEY", KEY)
    store = DiagnosisStore(tmp_path)
    for number in (1, 2):
        store.begin(DiagnosisRequest(number, 10, {}), 30, GraphView())
    change = ProposedChange(
        knob=SCALE, value=0.1, before=1.0, tick=14, revert_if=RevertIf(metric="loss", above=2.3), cause="c"
    )
    store.record_use(1, 14, change)
    store.record_use(2, 14, None)
    store.record_use(3, 15, None)
    assert store.count == 2 and store.latest_change() == change
    run = Alone(tmp_path, diagnoses=2)
    answers = run.ticks(ONSET + 10)
    assert run.agent.slot.is_free and "reached supervisor.diagnoses, 2 diagnoses: 2 diagnoses" in notices(answers)
    assert run.beside is not None
    run.beside.close()
    (tmp_path / "diagnoses" / "001" / "taken.json").write_text("[]")
    with pytest.raises(ConfigError, match="does not contain a proposed change"):
        store.latest_change()


def test_a_missing_model_or_key_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no model is configured: set supervisor.model" in str(Supervisor().cannot_fire(started()))
    monkeypatch.delenv("OVEN_TEST_KEY", raising=False)
    run = Alone(tmp_path)
    assert run.beside is None and "OVEN_TEST_KEY is not set" in str(run.agent.cannot_fire(started()))
    with pytest.raises(ConfigError, match="contains the replies"):
        load_repeatable("supervisor")
    assert "supervisor" not in repeatable_agents() and isinstance(load("supervisor")[1], Supervisor)
    assert DiagnosisRequest(1, 2, {}).number == 1


def test_the_agent_starts_only_with_a_model_in_its_own_process_and_as_a_shadow() -> None:
    names = [spec.name for spec in agent_specs(Settings())]
    assert not {"supervisor", "tuner"} & set(names)
    with pytest.raises(ConfigError, match=r"the agent `supervisor` has no model: set supervisor\.model"):
        with_agent_rules(Settings(agents=("supervisor", "divergence")))
    on = with_agent_rules(Settings.model_validate(settings("http://127.0.0.1:9/v1")))
    assert on.rules.shadow == ("supervisor",) and "supervisor" not in on.rules.trusted
    specs = agent_specs(on)
    for size in (None, 1, 3, 100):
        alone = [pool for pool in make_pools(specs, size) if "supervisor" in pool.names]
        assert [pool.names for pool in alone] == [("supervisor",)] and alone[0].process_name == "agent-supervisor"
    assert [pool.names for pool in make_pools([agent_spec("supervisor")], None)] == [("supervisor",)]
    counted = Settings.model_validate(settings("http://127.0.0.1:9/v1", shadow=False))
    assert with_agent_rules(counted).rules.shadow == ()
    with pytest.raises(ConfigError, match="supervisor has settings but is not an agent of this run"):
        with_agent_rules(Settings.model_validate(settings("http://127.0.0.1:9/v1") | {"agents": ["divergence"]}))
    wrong = settings("http://127.0.0.1:9/v1")
    wrong["supervisor"]["worker"] = {"provider": "cluade", "model": "m"}
    with pytest.raises(ConfigError, match="no provider named 'cluade'"):
        with_agent_rules(Settings.model_validate(wrong))
