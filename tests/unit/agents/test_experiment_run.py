"""An experiment with scripted models in the real sandbox: its score, what fails, and what resuming leaves alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_handler import ScriptedHandler, in_order, program

from oven_core.errors import ConfigError
from oven_llm.experiments.analysis import analysed
from oven_llm.experiments.experiment import Done, Experiment, Models
from oven_llm.experiments.run_folder import Outcome, RunConfig, RunFolder
from oven_llm.experiments.sample import Posed, posed
from oven_llm.experiments.training_rows import exported
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.models import ModelHandler
from oven_llm.tasks.example import Document, Example, Reference

PARAGRAPHS = ("Opening.", "The tagger reaches 93.4.", "It has no decoder.")
ANSWERS = ("93.4", "No", "Unanswerable")
RIGHT = tuple(program(f'FINAL({{"answer": "{answer}", "evidence": context[1:2]}})') for answer in ANSWERS)
CORRECT, WRONG = '{"reason": "same", "correct": true}', '{"reason": "other", "correct": false}'
KEY = "sk-canary-3141592653"


def config(**changes: Any) -> RunConfig:
    given = {
        "task": "qasper", "supervisor_model": "large", "worker_model": "small", "judge_model": "", "base_url": "",
        "worker_base_url": "", "key_env": "", "worker_key_env": "", "data": "",
        "data_sha256": "", "n": 3, "seed": 1, "max_iterations": 3, "num_distractors": 0,
        "worker_ctx_k": 8, "concurrency": 1, "budget_usd": None, "prompt": "",
        "text_evidence_only": False, "baselines": False, "version": "0",
        "python": "3",
    }  # fmt: skip
    return RunConfig(**{**given, **changes})


def questions() -> list[Posed]:
    kinds: Sequence[Any] = ("extractive", "boolean", "none")
    examples = [
        Example(
            f"q{number}",
            Document(f"d{number}", f"Paper {number}", PARAGRAPHS),
            f"Question {number}?",
            (Reference(answer, PARAGRAPHS[1:2] if kind != "none" else (), kind),),
        )
        for number, (answer, kind) in enumerate(zip(ANSWERS, kinds, strict=True))
    ]
    return posed(examples, examples, "Be brief.", 0, 1)


def says(*answers: str | Exception, **options: Any) -> ScriptedHandler:
    return ScriptedHandler(in_order(*answers), **options)


def play(
    folder: Path, supervisor: ModelHandler, worker: ModelHandler, judge: ModelHandler | None = None, **changes: Any
) -> Done:
    folder.mkdir(exist_ok=True)
    settings = config(**({"judge_model": "judge"} if judge else {}) | changes)
    RunFolder(folder).configure(settings)
    return Experiment(RunFolder(folder), settings, Models(supervisor, worker, judge)).run(questions())


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).read_text().splitlines()))


def test_answers_are_scored_written_and_exported(tmp_path: Path) -> None:
    supervisor = says(RIGHT[0], program("FINAL(True)"), RIGHT[2], model="org/large")
    done = play(tmp_path, supervisor, says())
    assert done.stopped == "" and [one.ended for one in done.outcomes.values()] == ["final"] * 3
    rows = table(tmp_path, "results.csv")
    assert list(rows[0])[:7] == ["id", "doc_id", "question", "log_path", "label", "prediction", "score"]
    assert [(row["score"], row["answer_f1"], row["evidence_f1"]) for row in rows] == [
        ("1.0", "1.0", "1.0"),
        ("0.0", "0.0", "0.0"),  # True is Yes
        ("1.0", "1.0", "0.0"),
    ]
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "question_id": "q0", "predicted_answer": "93.4", "predicted_evidence": ["The tagger reaches 93.4."]
    }  # fmt: skip
    (row,) = analysed(tmp_path)
    assert (row.supervisor, row.correct, row.scored, row.errors, row.steps) == ("large", 2.0, 3, 0, 3)
    assert (row.supervisor_in, row.supervisor_out, row.worker_in) == (30, 15, 0)
    assert row.answer_f1 is not None and row.answer_f1.mean == pytest.approx(2 / 3)
    assert exported([tmp_path], "supervisor", 1.0).questions == 2
    assert play(tmp_path, says(), says()).outcomes == done.outcomes  # nothing is asked again


def test_baselines_and_the_judge_stand_beside_it(tmp_path: Path) -> None:
    worker = says(*['{"answer": "93.4", "evidence": [2]}'] * 6, model="small")
    judge = says(CORRECT, WRONG, CORRECT, WRONG, WRONG, CORRECT, WRONG, "no verdict", model="judge")
    done = play(tmp_path, says(*RIGHT), worker, judge, baselines=True)
    assert len(judge.asked) == 8  # an answer that was judged already is not judged again
    said = done.outcomes[0]
    assert {name: one.answer_f1 for name, one in said.baselines.items()}["cut"] == 1.0
    assert set(said.baselines) == {"cut", "retrieval", "no_model"}
    rows = analysed(tmp_path)
    assert [row.supervisor for row in rows[1:]] == ["– text cut to the window", "– keyword retrieval", "– no model"]
    assert rows[0].judge == "judge" and rows[1].gain is not None


def failing(kind: Any) -> Callable[[str], str]:
    def says(_: str) -> str:
        raise ModelFailure(kind)

    return says


def test_a_failure_is_an_error_and_no_score_and_a_resumed_run_repairs_it(tmp_path: Path) -> None:
    supervisor = ScriptedHandler(failing("timeout"), model="large")
    done = play(tmp_path, supervisor, says())
    assert done.stopped == "" and not any(one.settled for one in done.outcomes.values())
    assert [(row["score"], row["error"]) for row in table(tmp_path, "results.csv")] == [("", "failed: timeout")] * 3
    assert (tmp_path / "predictions.jsonl").read_text() == ""
    (row,) = analysed(tmp_path)
    assert (row.scored, row.errors, row.answer_f1) == (0, 3, None)
    again = play(tmp_path, says(*RIGHT, model="large"), says())
    assert all(one.settled for one in again.outcomes.values())
    assert [row["score"] for row in table(tmp_path, "results.csv")] == ["1.0"] * 3


def test_a_refused_key_ends_the_run_at_once(tmp_path: Path) -> None:
    supervisor = ScriptedHandler(failing("auth"))
    done = play(tmp_path, supervisor, says())
    assert len(done.outcomes) == len(supervisor.asked) == 1 and "auth" in done.stopped


def test_of_an_interrupted_question_no_answered_call_is_made_again(tmp_path: Path) -> None:
    """The supervisor is away after its first turn, and then the disk is full at the first verdict."""
    first = program("print(worker('read: ' + context[1]))")
    away = [ModelFailure("auth")]
    assert play(tmp_path, says(first, *away), says("it says 93.4")).outcomes[0].iterations == 1
    left = says(RIGHT[0])
    with pytest.raises(OSError, match="full"):
        play(tmp_path, left, says(), says(OSError("full")))
    assert len(left.asked) == 1
    done = play(tmp_path, says(*RIGHT[1:]), says(), says(CORRECT, WRONG, CORRECT))
    assert [one.supervised.score for one in done.outcomes.values()] == [1.0, 0.0, 1.0]
    assert done.outcomes[0].iterations == 2


def test_a_judge_that_fails_leaves_no_score(tmp_path: Path) -> None:
    judge = says(CORRECT, "I think so", ModelFailure("rate_limit"))
    done = play(tmp_path, says(*RIGHT), says(), judge)
    assert [(one.supervised.score, one.supervised.judge_failure) for one in done.outcomes.values()] == [
        (1.0, ""),
        (None, "bad_json"),
        (None, "rate_limit"),
    ]
    (row,) = analysed(tmp_path)
    assert (row.correct, row.scored, row.errors) == (1.0, 1, 2)


def test_an_answer_that_never_comes_is_wrong_and_no_error(tmp_path: Path) -> None:
    done = play(tmp_path, ScriptedHandler(lambda _: program("print(1)")), says())
    assert {one.ended for one in done.outcomes.values()} == {"iterations"}
    assert [(one.supervised.score, one.settled) for one in done.outcomes.values()] == [(0.0, True)] * 3


def test_no_file_holds_a_key_that_an_endpoint_sends_back(tmp_path: Path) -> None:
    secret: dict[str, Any] = {"secrets": (KEY,)}
    supervisor = says(*(f"{KEY}\n{one}" for one in RIGHT), **secret)
    worker = says(*[f'{{"answer": "{KEY}", "evidence": []}}'] * 6, **secret)
    judge = ScriptedHandler(lambda _: f'{{"reason": "{KEY}", "correct": true}}', **secret)
    play(tmp_path, supervisor, worker, judge, baselines=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 12 and not [path for path in files if KEY.encode() in path.read_bytes()]


def test_another_question_in_the_folder_is_refused(tmp_path: Path) -> None:
    done = play(tmp_path, says(*RIGHT), says())
    other: Outcome = done.outcomes[1].model_copy(update={"id": "other"})
    RunFolder(tmp_path).keep(1, other)
    with pytest.raises(ConfigError, match="holds another question"):
        play(tmp_path, says(), says())


LOOK = program("print(worker_batch(['a', 'b']))")


def failing_once(*kinds: Any) -> Callable[[str], str]:
    """Each of the kinds once, and then the prompt in capitals."""
    left = [ModelFailure(kind) for kind in kinds]

    def says(prompt: str) -> str:
        if left:
            raise left.pop()
        return prompt.upper()

    return says


def test_an_answer_after_a_worker_failed_has_no_score_until_that_call_is_made_again(tmp_path: Path) -> None:
    supervisor = says(LOOK, RIGHT[0], *RIGHT[1:], model="large")
    worker = ScriptedHandler(failing_once("timeout"), model="small")
    judge = says(CORRECT, CORRECT, model="judge")
    done = play(tmp_path, supervisor, worker, judge)
    lost = done.outcomes[0]
    assert (lost.supervised.score, lost.supervised.failure, lost.settled) == (None, "worker: timeout", False)
    assert done.stopped == "" and done.outcomes[1].supervised.score == 1.0
    first = table(tmp_path, "results.csv")[0]
    assert (first["score"], first["error"]) == ("", "worker: timeout")
    (row,) = analysed(tmp_path)
    assert (row.scored, row.errors, row.failed) == (2, 1, {"worker: timeout": 1})
    # The worker's other answer, and the supervisor's first, are not asked for again; the second had seen the failure.
    supervisor, worker = says(RIGHT[0], model="large"), ScriptedHandler(str.upper, model="small")
    again = play(tmp_path, supervisor, worker, says(CORRECT, model="judge")).outcomes[0]
    assert (again.supervised.score, again.settled) == (1.0, True)
    assert len(supervisor.asked) == len(worker.asked) == 1 and "failed" not in supervisor.asked[0]
    assert [one["step"] for one in exported([tmp_path], "supervisor", 1.0).rows] == [1, 2, 1, 1]


def test_what_a_prompt_of_its_own_brings_about_is_scored_and_a_refused_key_ends_the_run(tmp_path: Path) -> None:
    worker = ScriptedHandler(failing_once("bad_request"), model="small")
    done = play(tmp_path / "prompt", says(LOOK, *RIGHT), worker)
    assert done.outcomes[0].supervised.score == 1.0 and all(one.settled for one in done.outcomes.values())
    done = play(tmp_path / "key", says(LOOK, *RIGHT), ScriptedHandler(failing("auth"), model="small"))
    assert len(done.outcomes) == 1 and done.outcomes[0].supervised.score is None
    assert "the worker's calls fail by auth" in done.stopped


def test_a_verdict_that_could_not_be_read_is_asked_for_again(tmp_path: Path) -> None:
    judge = says("I think so", CORRECT, CORRECT, model="judge")
    assert play(tmp_path, says(*RIGHT), says(), judge).outcomes[0].supervised.judge_failure == "bad_json"
    judge = says(WRONG, model="judge")
    again = play(tmp_path, says(), says(), judge)
    assert len(judge.asked) == 1 and again.outcomes[0].supervised.score == 0.0
    kept = [json.loads(line) for line in (tmp_path / "000" / "own_calls.jsonl").read_text().splitlines()]
    assert [one["response"] for one in kept] == ["I think so", WRONG], "what was paid for is written down"


def test_a_resumed_run_that_is_stopped_keeps_the_rows_of_the_earlier_one(tmp_path: Path) -> None:
    play(tmp_path, says(*RIGHT, model="large"), says())
    (tmp_path / "000" / "outcome.json").unlink()
    (tmp_path / "000" / "supervisor.jsonl").unlink()
    again = play(tmp_path, ScriptedHandler(failing("auth"), model="large"), says())
    assert again.stopped and [row["id"] for row in table(tmp_path, "results.csv")] == ["q0", "q1", "q2"]
    assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 2


def test_tokens_that_no_endpoint_told_are_not_counted_as_none_used(tmp_path: Path) -> None:
    worker = ScriptedHandler(lambda _: '{"answer": "93.4", "evidence": [2]}', usage=None, usd=None, model="small")
    done = play(tmp_path, says(LOOK, *RIGHT), worker, baselines=True)
    said = done.outcomes[0]
    assert (said.supervised.tokens_in, said.supervised.usd) == (None, None)
    assert said.baselines["cut"].tokens_out is None and said.baselines["no_model"].tokens_in == 0
    rows = analysed(tmp_path)
    assert (rows[0].worker_in, rows[0].supervisor_in, rows[1].worker_in, rows[0].usd) == (None, 40, None, None)


def test_a_judge_or_a_baseline_that_refuses_the_key_ends_the_run(tmp_path: Path) -> None:
    done = play(tmp_path / "judge", says(*RIGHT), says(), ScriptedHandler(failing("auth"), model="judge"))
    assert len(done.outcomes) == 1 and done.stopped == "the judge's calls fail by auth"
    done = play(tmp_path / "cut", says(*RIGHT), ScriptedHandler(failing("not_found"), model="small"), baselines=True)
    lost = done.outcomes[0].baselines["cut"]
    assert len(done.outcomes) == 1 and done.stopped == "the worker's calls fail by not_found"
    assert (lost.score, lost.answer_f1, lost.evidence_f1, lost.tokens_in, lost.usd) == (None,) * 5
