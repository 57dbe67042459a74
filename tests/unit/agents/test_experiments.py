"""The parts of an experiment: baselines, κ, intervals, the judge, tables, rows to train on, and bad input."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from oven_controller.cli.main import run
from oven_core.errors import ConfigError
from oven_llm.experiments import baselines, correctness_judge
from oven_llm.experiments.analysis import analysed, kappa, runs_in
from oven_llm.experiments.analysis_table import table
from oven_llm.experiments.correctness_judge import UnreadableVerdictError
from oven_llm.experiments.intervals import clustered
from oven_llm.experiments.keyword_retrieval import ranked, scores
from oven_llm.experiments.sample import Posed, drawn, posed
from oven_llm.experiments.training_rows import exported
from oven_llm.tasks.example import Document, Example, Prediction, Reference

TEXTS = (
    "## Data",
    "We label 1,200 letters.",
    "## Results",
    "The CRF is fast. The BiLSTM reaches 93.4 F1 on held-out letters.",
    "Thanks to all.",
)


def example(number: int = 0, question: str = "Which F1 does the BiLSTM reach?") -> Example:
    document = Document(f"d{number}", f"Letters {number}", TEXTS)
    return Example(f"q{number}", document, question, (Reference("93.4", TEXTS[3:4], "extractive"),))


def put(question: str = "Which F1 does the BiLSTM reach?") -> Posed:
    return posed([example(question=question)], [example()], "Be brief.", 0, 1)[0]


def test_bm25_is_the_formula_and_ranks_by_the_questions_words() -> None:
    found = scores("red fox", ["red red", "blue", "a fox"])
    idf, mean = 0.9808292530117262, 5 / 3  # log(1 + 2.5 / 1.5): one paragraph of three has the word
    assert found[0] == pytest.approx(idf * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 2 / mean)))
    assert found[1] == 0.0 and found[2] == pytest.approx(idf * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / mean)))
    assert ranked("Which F1 does the BiLSTM reach?", TEXTS)[0] == 3 and ranked("nothing known", TEXTS) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_baseline_reads_what_fits_into_the_window_and_evidence_is_whole_paragraphs() -> None:
    assert baselines.shown("cut", put(), 60) == list(TEXTS[:3])
    assert baselines.shown("retrieval", put(), 70) == [TEXTS[3]]
    assert baselines.shown("retrieval", put(), 10) == [TEXTS[3][:10]]
    paragraphs = baselines.shown("cut", put(), 1000)
    asked = baselines.messages(put(), paragraphs)[0]["content"]
    assert "[4] The CRF" in asked and "Letters 0" in asked
    said = 'Sure: {"answer": ["93.4"], "evidence": [4, 99, "x", 4, true]}'
    assert baselines.read(said, paragraphs) == Prediction("93.4", (TEXTS[3],))
    assert baselines.read(" 93.4 F1 {", paragraphs) == Prediction("93.4 F1 {")
    assert baselines.window(8) == 18_000


def test_without_a_model_the_best_paragraphs_best_sentence_is_the_answer() -> None:
    sentence = "The BiLSTM reaches 93.4 F1 on held-out letters."
    assert baselines.without_model(put()) == Prediction(sentence, (TEXTS[3],))
    assert baselines.without_model(put("Is the BiLSTM better?")).answer == "Yes"


def test_kappa_is_cohens() -> None:
    """20 and 15 of 50 alike: .7 agree, .5 would by chance, since the raters say yes to 25 and to 30."""
    first, second = [True] * 25 + [False] * 25, [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    assert kappa(first, second) == pytest.approx(0.4, abs=1e-12)
    assert kappa([True, False], [False, True]) == -1.0
    assert kappa([], []) is None and kappa([True, True], [True, True]) is None
    with pytest.raises(ValueError, match="shorter"):
        kappa([True], [])


def test_intervals_draw_documents_and_not_questions() -> None:
    values, documents = [0.0] * 10 + [1.0] * 10 + [0.5] * 40, [str(at // 10) for at in range(60)]
    alike, apart = clustered(values, documents), clustered(values, [str(at) for at in range(60)])
    assert alike.mean == apart.mean == pytest.approx(0.5)
    assert alike.low is not None and alike.high is not None and apart.low is not None and apart.high is not None
    assert alike.high - alike.low > 1.5 * (apart.high - apart.low)
    assert clustered(values, documents) == alike
    few = clustered([0.0, 1.0], ["a", "b"])
    assert (few.mean, few.low, few.high) == (0.5, None, None)


def test_a_verdict_is_true_or_false_and_never_prose() -> None:
    asked = correctness_judge.messages(example(), Prediction('"}, "correct": true'))
    assert json.loads(asked[1]["content"])["answer"] == '"}, "correct": true'
    assert correctness_judge.verdict('Here: {"reason": "same", "correct": true}') is True
    for text, kind in (("Yes, correct.", "bad_json"), ('{"correct": "yes"}', "schema"), ("{x", "bad_json")):
        with pytest.raises(UnreadableVerdictError, match=kind):
            correctness_judge.verdict(text)


def test_questions_are_drawn_by_seed_and_read_among_other_documents() -> None:
    every = [example(number) for number in range(6)]
    assert drawn(every, 3, 1) == drawn(every, 3, 1) != drawn(every, 3, 2) and drawn(every, -1, 1) == every
    for count, said in ((0, "-n 0"), (-2, "-n -2"), (7, "there are 6")):
        with pytest.raises(ConfigError, match=said):
            drawn(every, count, 1)
    found = posed(every[:2], every, "Be brief.", 2, 1)
    for one in found:
        titles = [text for text in one.context if text.startswith("# ")]
        assert len(titles) == 3 and f"# {one.example.document.title}" in titles
        assert one.query == f"About the document “{one.example.document.title}”: {one.example.question}\n\nBe brief."
    with pytest.raises(ConfigError, match="give 0 to 5"):
        posed(every, every, "", 6, 1)


def source_run(folder: Path) -> Path:
    """As Supervisor Distillation writes a run: seven columns, no settings, no evidence."""
    rows = [("a", "1.0"), ("b", "0.0"), ("c", "1.0")]
    folder.mkdir(parents=True)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "doc_id", "question", "log_path", "label", "prediction", "score"])
        for number, (key, score) in enumerate(rows):
            writer.writerow([key, "d", "What?", f"/elsewhere/{folder.name}/{number:03}", "x", "y", score])
    for number, (key, _) in enumerate(rows):
        place = folder / f"{number:03}"
        place.mkdir()
        usage = {"input_tokens": 1000, "output_tokens": 10}
        about = {"timestamp": "2026-02-11T16:35:19+00:00", "usage": usage, "elapsed": 1.5}
        asked = [{"role": "system", "content": "Write programs."}, {"role": "user", "content": key}]
        turns = [
            {"step": step, "model": "meta/Large", "messages": asked, "response": f"turn {step}"} for step in (1, 2)
        ]
        worker = {"step": 1, "model": "meta/Small", "prompt": "read", "response": "done"}
        programs = [{"step": 1, "stderr": "Traceback"}, {"step": 2, "code": "FINAL(1)", "stdout": "", "stderr": ""}]
        for name, lines in (("supervisor", turns), ("worker", [worker]), ("repl", programs)):
            text = "".join(json.dumps(about | line) + "\n" for line in lines)
            (place / f"{name}.jsonl").write_text(text + ('{"step": 3, "cut' if name == "worker" else ""))
    return folder


def test_a_run_of_supervisor_distillation_is_analysed_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = source_run(tmp_path / "logs" / "20260211-163519")
    (row,) = analysed(place)
    assert runs_in([tmp_path / "logs"]) == [place]
    lines = table([row])
    assert [cell.strip() for cell in lines[2].split("|")] == [
        *("Large", "Small", "67% (2/3)", "2.0", "6", "6,000", "60", "3,000", "30"),
        *("–", "–", "?"),
    ]
    rows = exported([place], "supervisor", 1.0)
    assert (len(rows.rows), rows.questions, rows.of, rows.left_out) == (2, 2, 3, 2)
    assert rows.rows[0]["completion"] == [{"role": "assistant", "content": "turn 2"}]
    assert [one["role"] for one in rows.rows[0]["prompt"]] == ["system", "user"]
    with pytest.raises(SystemExit) as ended:
        run(["supervise", "export", str(place), "--role", "worker", "--json"])
    assert ended.value.code == 0 and json.loads(capsys.readouterr().out)["rows"] == 2
    written = [json.loads(line) for line in (place / "worker-rows.jsonl").read_text().splitlines()]
    assert written[0]["prompt"] == [{"role": "user", "content": "read"}]


def test_a_damaged_log_is_refused_and_only_a_lines_end_ends_one(tmp_path: Path) -> None:
    place = source_run(tmp_path / "run")
    log = place / "000" / "worker.jsonl"
    log.write_text(log.read_text().replace("done", "done\u2028and\u0085done"))
    rows = exported([place], "worker", 1.0).rows
    assert rows[0]["completion"][0]["content"] == "done\u2028and\u0085done"
    log.write_text('{"step": 1, "resp\n' + log.read_text())
    for read in (lambda: analysed(place), lambda: exported([place], "worker", 1.0)):
        with pytest.raises(ConfigError, match=r"worker\.jsonl, line 1, is not an event of a run"):
            read()


def test_a_table_with_something_else_than_figures_is_refused(tmp_path: Path) -> None:
    place = source_run(tmp_path / "run")
    whole = (place / "results.csv").read_text()
    faults = {"nan": "row 1 has score nan", "good": "damaged: .*good", "1.0,7": "row 1 has more or fewer"}
    for score, said in faults.items():
        (place / "results.csv").write_text(whole.replace("1.0", score, 1))
        for read in (lambda: analysed(place), lambda: exported([place], "worker", 1.0)):
            with pytest.raises(ConfigError, match=said):
                read()


def test_a_table_says_once_what_accuracy_is(tmp_path: Path) -> None:
    (row,) = analysed(source_run(tmp_path / "run"))
    judged = replace(row, supervisor="Larger", judge="judge")
    assert table([row])[-1].endswith("Accuracy is exact match.")
    assert table([judged, judged])[-1].endswith("Accuracy is the judge's.")
    assert table([row, judged])[-1].endswith(
        "Accuracy is the judge's, but exact match in runs without one (Large, Small)."
    )


DATA = ("--data", str(Path(__file__).parents[2] / "support" / "qasper" / "released.json"))
LOCAL = ("--base-url", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["run", "--task", "stdlib", "-n", "0"], "-n 0: give how many questions"),
        (["run", "--task", "stdlb"], "did you mean 'stdlib'"),
        (["run", "-n", "1"], "the task qasper has no data file"),
        (["run", "--data", "none.json"], "there is no data file none.json"),
        (["run", "--data", "cut.json"], "cut or damaged"),
        (["run", *DATA, "-n", "1"], "TOGETHER_API_KEY"),
        (["run", *DATA, "-n", "1", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["run", *DATA, "-n", "1", "--worker-key-env", "KEY", *LOCAL], "which is not given"),
        (["run", *DATA, "-n", "1", "--budget-usd", "0", *LOCAL], "--budget-usd"),
        (["run", *DATA, "-n", "1", "--budget-usd", "1", *LOCAL], "price"),
        (["run", *DATA, "-n", "3", "--num-distractors", "9"], "--num-distractors 9"),
        (["run", *DATA, "-n", "1", "--prompt", "none.txt"], "cannot read --prompt none.txt"),
        (["run", *DATA, "-n", "1", "--prompt", "latin.txt"], "--prompt latin.txt is not UTF-8 text (byte 1)"),
        (["run", "--resume", "."], "is not a run of `supervise run`"),
        (["grid", "--task", "stdlib"], "a grid needs models"),
        (
            ["run", "--resume", ".", "-n", "4", "--no-baselines", "--budget-usd", "2"],
            "--resume continues with the options that the run began with: leave out -n, --no-baselines, or",
        ),
        (["grid", "--resume", "cut.json", "--worker-model", "w"], "leave out --worker-model, or begin anew"),
        (["grid", "--resume", "cut.json"], "is not the list of a grid's runs"),
        (["analyze", "nowhere"], "there is no folder nowhere"),
        (["analyze", "."], "holds no run"),
        (["export", ".", "--least-score", "2"], "--least-score 2"),
        (["data", "no/folder.json"], "there is no folder"),
        (["data", "x.json", "-n", "0"], "give 1 or more"),
    ],
)
def test_bad_input_is_a_message_with_the_remedy(
    typed: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOGETHER_API_KEY", "OPENAI_API_KEY", "BASE_URL", "LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    Path("latin.txt").write_bytes(b"n\xefve")
    Path("cut.json").write_text('{"a": {"title": "x", "qas": [')
    with pytest.raises(SystemExit) as ended:
        run(["supervise", *typed])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not Path("logs").exists()
