"""Prompts of an author's: which the learner takes, how many, and that they change nothing until a decision says so."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, weights
from tests.unit.learner.test_attach_trl import grpo
from tests.unit.learner.test_rewards_committee import Remote

from oven_core.errors import ConfigError
from oven_core.protocol.announcements import PromptsInjected
from oven_core.protocol.messages import RunStarted
from oven_learner.actuators import Actuators
from oven_learner.hf.attach import attach
from oven_learner.hf.hooks.authored_prompts import AuthoredPromptsReader
from oven_learner.hf.prompts import PromptSource
from oven_learner.hf.prompts.prompt_admission import SHARE, Admission, key_of
from oven_learner.ranks import Ranks
from oven_learner.rewards import Committee
from oven_learner.rewards.verdicts import Abstention, score_rows
from oven_learner.testing import FakeLink
from oven_runs.home.authored_prompts import (
    FOLDER,
    MAX_CHARACTERS,
    PROMPTS_FILE,
    AuthoredPrompt,
    Batch,
    append_prompts,
    read_prompts,
    read_topics,
)

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

TOPICS = {"vowels": list("aeiou"), "others": list("bcdfgh")}


def authored_prompt(prompt: str, topic: str = "vowels", **more: Any) -> AuthoredPrompt:
    return AuthoredPrompt(topic=topic, prompt=prompt, by="author", model="m-1", tick=4, **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder whose author may give twelve prompts, to any share of the draws."""
    author = {"llm": {"provider": "claude", "model": "m"}, "total": 12, "share": 1.0, "examples": 1}
    (tmp_path / "config.json").write_text(json.dumps({"author": author}))
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    return tmp_path


def line(text: str, **more: Any) -> bytes:
    return json.dumps({"topic": "vowels", "prompt": text, "by": "author", **more}).encode() + b"\n"


def hostile(folder: Path) -> dict[str, int]:
    """Fills the author's file with what must not get in beside good prompts, and says what is to be counted."""
    append_prompts(folder, [authored_prompt(f"say {n} times a") for n in range(3)])
    with (folder / FOLDER / PROMPTS_FILE).open("ab") as out:
        out.write(line("say 0 times a") + line(" SAY  1 times A") + line("a"))  # of the author's, and of the data
        out.write(line("a\u202eb") + line("\0") + line("   ") + line("x", topic="verses"))
        out.write(
            line("y" * (MAX_CHARACTERS + 1)) + line("z" * 1_000_000) + b"Sure! Here are ten prompts:\n" + b"[1]\n{}\n"
        )
        out.write(line("Never see this one sentence again, please, my friend!"))
        out.writelines(line(f"flood {n}") for n in range(10_000))
    pieces = 4  # a line of a megabyte is passed over by four reads, and counted by each
    wrong = {"too_long": 1 + pieces, "malformed": 3, "duplicate": 3, "control": 2, "empty": 1, "unknown_topic": 1}
    return {**wrong, "held_out": 1, "capped": 10_000 - 9}


def trained(
    folder: Path, *, plan: dict[int, Any] | None = None, steps: int = 12
) -> tuple[Any, list[str], FakeLink, Any]:
    """A GRPO run, the prompt of each generation, what was said, and the source."""
    source = PromptSource(TOPICS, seed=2, held_out=["never see this one sentence again please my friend"])
    job: Any = grpo(folder, data=source.dataset, max_steps=steps)
    link, seen = FakeLink(plan), []
    attach(job, link=link, mixture=source)
    generate = job._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        seen.append(inputs[0]["prompt"])
        return generate(inputs)

    job._generate_and_score_completions = watched
    job.train()
    return job, seen, link, source


def test_a_flooding_author_changes_no_weight_while_its_share_is_0(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = hostile(folder)
    with_author, drawn, link, source = trained(folder)
    monkeypatch.delenv("OVEN_RUN_DIR")
    without, same, _, _ = trained(tmp_path / "without")
    assert drawn == same and equal(weights(with_author), weights(without))
    announced = next(message for message in link.sent if isinstance(message, RunStarted))
    knob = next(spec for spec in announced.actuators if spec.name == SHARE)
    assert (knob.value, knob.low, knob.high, knob.moves_own_metric) == (0.0, 0.0, 1.0, True)
    messages = [message for message in link.sent if isinstance(message, PromptsInjected)]
    assert sum(len(message.hashes) for message in messages) == 12, "author.total"
    assert all(message.by == "author" for message in messages) and "m-1 at tick 4" in messages[0].why
    assert "times a" not in "".join(map(str, link.sent)), "the log has hashes and no text"
    assert source.authored.refusals == expected
    assert link.observed()[-1].metrics["data/authored"] == 12
    assert link.observed()[-1].metrics["data/authored_refused"] == sum(expected.values())


def test_an_adopted_share_draws_authored_prompts_and_a_restored_state_reads_the_file_again(folder: Path) -> None:
    append_prompts(folder, [authored_prompt(f"say {n} times a") for n in range(4)] + [authored_prompt("b b", "others")])
    _, seen, link, source = trained(folder, plan={2: (SHARE, 1.0)})
    assert [receipt.status for receipt in link.receipts()] == ["applied"]
    assert set(seen[:3]) <= {*"abcdefghiou"} and all(" " in prompt for prompt in seen[6:])
    (before := PromptSource(TOPICS, seed=2)).load_state_dict(source.state_dict())
    assert [before.rows(chunk, 2) for chunk in range(8)] == [source.rows(chunk, 2) for chunk in range(8)]
    assert (
        before.authored.offset == source.authored.offset
        and before.authored.accepted_keys == source.authored.accepted_keys
    )
    assert [(topic.name, topic.examples) for topic in read_topics(folder)] == [("vowels", ("a",)), ("others", ("b",))]


def hook(source: PromptSource, committee: Committee | None = None, evaluated: Any = None) -> AuthoredPromptsReader:
    trainer: Any = SimpleNamespace(eval_dataset=evaluated)
    made = AuthoredPromptsReader(trainer, source, committee)
    made.begin(Ranks())
    return made


def announced(made: AuthoredPromptsReader) -> bool:
    made.register_knob(actuators := Actuators())
    return SHARE in actuators


def step(made: AuthoredPromptsReader) -> None:
    made.after_poll(None, None)  # type: ignore[arg-type]


def test_a_prompt_that_quotes_the_held_out_set_is_refused(folder: Path) -> None:
    question = "a train leaves the old station at noon and meets another one"
    template = "sort the letters of this word and say the result: "
    rows = Dataset.from_list([{"prompt": question}, {"prompt": template + "zebra"}])
    source = PromptSource([template + word for word in ("bee", "cat")], held_out=["7 times 8 makes"])
    made = hook(source, evaluated={"test": rows})
    quotes = [
        "Solve: A train leaves the OLD station at noon and stops.",
        template + "zebra",
        "what does 7 times 8 makes?",
    ]
    fresh = [template + "dog", "a train leaves at noon"]
    append_prompts(folder, [authored_prompt(text, "prompts") for text in quotes + fresh])
    step(made)
    assert source.authored.refusals["held_out"] == 3
    assert [len(source.authored.pool), source.held] == [2, 0]


@given(st.lists(st.text(max_size=12), max_size=8))
def test_duplicates_of_the_data_and_of_accepted_prompts_are_refused(texts: list[str]) -> None:
    admission, accepted_keys = Admission(["the data's own"], ()), set[int]()
    for text in [*texts, "THE  data's own"]:
        why = admission.refusal(text, accepted_keys)
        assert why != "" or key_of(text) not in accepted_keys
        if not why:
            accepted_keys.add(key_of(text))
        assert admission.refusal(text, accepted_keys), "the second time it is a duplicate, or what it was"
    assert admission.refusal("the data's own", accepted_keys) == "duplicate"


@pytest.mark.parametrize("what", ["pipe", "folder", "link"])
def test_an_author_file_that_is_not_a_regular_file_does_not_block_training(
    folder: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = hook(source := PromptSource(TOPICS))
    path = folder / FOLDER / PROMPTS_FILE
    match what:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(folder / "config.json")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            step(made)
    assert len(source.authored.pool) == 0
    assert sum("cannot read the author's prompts" in line for line in caplog.messages) == 1


def test_an_endless_line_is_skipped_and_a_cut_line_affects_only_itself(folder: Path) -> None:
    (folder / FOLDER).mkdir()
    (folder / FOLDER / PROMPTS_FILE).write_bytes(b"x" * 600_000)
    append_prompts(folder, [authored_prompt("good")])
    offset, batches = 0, list[Batch]()
    while not batches or batches[-1].offset != offset:
        offset = batches[-1].offset if batches else 0
        batches.append(read_prompts(folder, offset))
    assert [prompt.prompt for batch in batches for prompt in batch.prompts] == ["good"]
    assert sum(batch.too_long for batch in batches) == 3


def exact(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def short(completions: list[str], **_: Any) -> list[float | None]:
    return [1.0] * len(completions)


def test_a_rule_abstains_without_a_reference_answer() -> None:
    columns = {"prompts": ["p", "q"], "completions": ["4", "4"], "answer": ["4", None], "log_metric": None}
    assert score_rows("exact", exact, columns, 2, {"answer"}) == [1.0, Abstention("not_applicable")]
    assert score_rows("short", short, columns, 2, {"answer"}) == [1.0, 1.0], "it compares with nothing"
    assert score_rows("exact", exact, columns, 2) == [1.0, 0.0], (
        "a column of the user's may be None for reasons of theirs"
    )
    none = {**columns, "answer": [None, None]}
    assert score_rows("exact", exact, none, 2, {"answer"}) == [Abstention("not_applicable")] * 2


def test_the_share_knob_exists_only_if_authored_prompts_can_be_scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = PromptSource([{"prompt": "a", "answer": "b"}])
    judge = Remote(judge=lambda request: (0.5,))
    judged = Committee({"exact": exact}, remote=judge)
    assert announced(hook(PromptSource(TOPICS))) and announced(hook(keyed, judged))
    assert judged.reference_columns == {"answer"}
    with caplog.at_level(logging.WARNING):
        assert not announced(hook(keyed)) and not announced(hook(keyed, Committee({"exact": exact})))
    assert "use oven.Committee as the reward" in caplog.text and "add a remote judge to the committee" in caplog.text
    (folder / "config.json").write_text('{"author": {}}')
    assert not announced(hook(PromptSource(TOPICS))), "it is off by default"
    (folder / "config.json").write_text('{"author": {"share": 7}}')
    with pytest.raises(ConfigError, match="invalid author settings in"):
        hook(PromptSource(TOPICS))
    monkeypatch.delenv("OVEN_RUN_DIR")
    assert not announced(hook(PromptSource(TOPICS)))
