"""Prompts from everywhere, by topic; more of them on the way; and a resumed run that draws the same ones."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from datasets import Dataset
from tests.support.attached import THIRD_PARTY, equal, weights
from tests.support.decisions import make
from tests.unit.learner.test_attach_trl import grpo
from transformers import TrainerCallback

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.announcements import PromptsInjected
from oven_learner.hf.attach import attach
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.prompts import PromptSource
from oven_learner.hf.prompts.prompt_rows import digest
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SUMS = [f"{n} + {n}" for n in range(10)]
PROOFS = [f"prove {n}" for n in range(10)]


def made(**options: Any) -> PromptSource:
    return PromptSource({"sums": SUMS, "proofs": PROOFS}, **{"seed": 1, **options})


def texts(source: PromptSource, chunks: int, count: int = 4) -> list[list[str]]:
    return [[row["prompt"] for row in source.take(count)] for _ in range(chunks)]


def stored(folder: Path) -> list[Callable[[], Any]]:
    """The same prompts in every form that can be read."""
    rows = [{"prompt": text, "answer": str(n)} for n, text in enumerate(SUMS)]
    lines = folder / "sums.jsonl"
    lines.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    Dataset.from_list(rows).save_to_disk(str(folder / "sums"))
    return [lambda: rows, lambda: lines, lambda: str(lines), lambda: folder / "sums", lambda: lambda: iter(rows)]


def test_a_list_a_file_a_folder_and_a_function_are_the_same_prompts(tmp_path: Path) -> None:
    drawn = [PromptSource(prompts(), seed=3).take(8) for prompts in stored(tmp_path)]
    assert all(prompts == drawn[0] for prompts in drawn) and set(drawn[0][0]) == {"prompt", "answer", "topic"}
    assert {row["topic"] for row in drawn[0]} == {"prompts"}


def test_topics_are_drawn_by_their_weights_like_a_mixture() -> None:
    source, mixture = (
        made(weights={"sums": 3, "proofs": 1}),
        Mixture({"sums": SUMS, "proofs": PROOFS}, {"sums": 3, "proofs": 1}, seed=1),
    )
    for _ in range(5):
        rows = source.take(8)
        assert [row["prompt"] for row in rows] == [mixture.dataset[n] for n in mixture.draw(mixture.next_chunk, 8)]
        assert Counter(row["topic"] for row in rows) == {"sums": 6, "proofs": 2}
    source.set({"sums": 0, "proofs": 1})
    assert {row["topic"] for row in islice(source, 20)} == {"proofs"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": ', "2 is not valid JSON"),
        ("7", "2 has the type int"),
        ('{"prompt": 7}', "2 has the type int"),
        ("[" * 5000, "2 is not valid JSON"),
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'"a"\n{line}\n')
    with pytest.raises(ConfigError, match=r"p\.jsonl:" + says):
        PromptSource(path)
    path.write_bytes(b'"a"\n"\xff"\n')
    with pytest.raises(ConfigError, match=r"p\.jsonl:2 is not valid JSON"):
        PromptSource(path)


@pytest.mark.parametrize(
    ("prompts", "more", "error", "says"),
    [
        ([], {}, ConfigError, "cannot inject 0 prompts; give 1 to 1000"),
        (["a"] * 1001, {}, ConfigError, "1001 prompts"),
        ("a", {}, ConfigError, "the injected prompts have the type str; give a list"),
        ([7], {}, ConfigError, "injected prompt 0 has the type int"),
        ([[{"role": "user", "content": "a"}]], {}, ConfigError, "is messages, but the source's prompts are text"),
        ([{"prompt": "a", "anser": 1}], {}, UnknownNameError, "no column of the prompts named 'anser'"),
        (["a"], {"by": " "}, ConfigError, "must have 1 to 64 characters"),
        (["a"], {"why": ""}, ConfigError, "must have 1 to 2000 characters"),
        (["a"], {"why": "y" * 2001}, ConfigError, "1 to 2000"),
        (["a"], {"topic": None}, ConfigError, "topic= is missing; choose from sums, proofs"),
        (["a"], {"topic": "proof"}, UnknownNameError, "did you mean 'proofs'"),
    ],
)
def test_an_invalid_injection_changes_nothing(prompts: Any, more: Any, error: Any, says: str) -> None:
    source = made()
    before = source.state_dict()["injected"]
    with pytest.raises(error) as raised:
        source.inject(prompts, **{"by": "ann", "why": "so", "topic": "sums", **more})
    assert says in str(raised.value) and source.state_dict()["injected"] == before and source.held == 0


def test_injected_prompts_get_their_share_and_the_oldest_are_evicted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = made(cap=3, share=0.5, weights={"sums": 1, "proofs": 1})
    source.take(4)
    first = source.inject(["new 0", "new 1"], by="ann", why="so", topic="sums")
    assert (first.held, first.evicted, first.hashes) == (2, 0, (digest("new 0"), digest("new 1")))
    drawn = [text for rows in texts(source, 100) for text in rows]
    share = sum(text.startswith("new") for text in drawn) / len(drawn)
    assert 0.2 < share < 0.3, "half of the draws of half of the topics"
    with caplog.at_level(logging.WARNING, "oven.learner"):
        second = source.inject(["new 2", "new 3"], by="ann", why="so", topic="proofs")
    assert (second.held, second.evicted) == (3, 1) and "evicted 1 injected prompts, because the cap is 3" in caplog.text
    third = source.inject([f"late {n}" for n in range(5)], by="ann", why="so", topic="sums")
    assert (third.held, third.evicted) == (3, 5)
    after = {text for rows in texts(source, 100) for text in rows} - {*SUMS, *PROOFS}
    assert after == {"late 2", "late 3", "late 4"}


def test_the_log_has_who_why_and_hashes_and_no_text() -> None:
    source, line = made(cap=2), FakeLink()
    source.inject(["secret one"], by="ann", why="before the start", topic="sums")
    client, _ = make(line)
    client.observe(1, {})
    source.log_to(client)
    source.inject(["secret two", "secret three"], by="bob", why="they lag", topic="proofs")
    messages = [message for message in line.sent if isinstance(message, PromptsInjected)]
    assert [
        (message.by, message.why, message.topic, message.held, message.evicted, message.tick) for message in messages
    ] == [
        ("ann", "before the start", "sums", 1, 0, 1),
        ("bob", "they lag", "proofs", 2, 1, 1),
    ]
    assert messages[1].hashes == (digest("secret two"), digest("secret three"))
    assert not any(b"secret" in message.wire() for message in line.sent)


def test_a_state_of_other_prompts_warns_and_one_of_a_higher_cap_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    state = made(cap=8).state_dict()
    with pytest.raises(ConfigError, match="cap=4 is lower than the saved"):
        made(cap=4).load_state_dict(state)
    with caplog.at_level(logging.WARNING, "oven.learner"):
        PromptSource({"sums": SUMS[::-1], "proofs": PROOFS}, seed=1, cap=8).load_state_dict(state)
    assert "the prompts differ from those of the saved state" in caplog.text
    with pytest.raises(ConfigError, match="expected exactly"):
        PromptSource({"sums": SUMS}).load_state_dict(state)


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("inject"), st.integers(1, 7), st.sampled_from(["sums", "proofs"])),
        st.tuples(st.just("set"), st.floats(0, 1)),
        st.tuples(st.just("skip"), st.integers(1, 5), st.integers(0, 2)),
    ),
    max_size=40,
)


def play(source: PromptSource, steps: list[tuple[Any, ...]], first: int = 0) -> list[list[str]]:
    drawn = []
    for number, step in enumerate(steps, first):
        match step:
            case ("take", count):
                drawn.append([row["prompt"] for row in source.take(count)])
            case ("inject", count, topic):
                source.inject([f"{number}.{n}" for n in range(count)], by="ann", why="so", topic=topic)
            case ("set", share):
                source.set({"sums": share, "proofs": 1 - share})
            case ("skip", count, back):
                source.skip(count, max(0, source.next_chunk - back))
    return drawn


@settings(max_examples=150, deadline=None)
@given(deeds, st.integers(0, 40))
def test_a_resumed_source_draws_the_same_prompts_whatever_happened(steps: list[tuple[Any, ...]], cut: int) -> None:
    straight, cut_step = made(cap=5), min(cut, len(steps))
    play(straight, steps[:cut_step])
    state = json.loads(json.dumps({**straight.state_dict(), "read": None}))  # plain values
    resumed = made(cap=5)
    resumed.inject(["of the script"], by="ann", why="at each start", topic="sums")
    resumed.load_state_dict({**state, "read": straight.read_rows.bits()})
    assert resumed.held == straight.held <= 5
    ahead = play(straight, steps[cut_step:], cut_step)
    assert play(resumed, steps[cut_step:], cut_step) == ahead
    assert resumed.state_dict()["injected"] == straight.state_dict()["injected"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 9), st.none()), max_size=60))
def test_a_drawn_prompt_stays_readable_until_it_is_fetched(steps: list[int | None]) -> None:
    """The loader draws up to two chunks ahead of what it fetches."""
    source = made(cap=3, share=0.9)
    waiting: list[list[tuple[int, str]]] = []
    for number, count in enumerate(steps):
        if count is None:
            rows = source.draw(source.next_chunk, 4)
            waiting.append([(row, source.row(row)["prompt"]) for row in rows])
            del waiting[:-2]
        else:
            source.inject([f"{number}.{n}" for n in range(count)], by="ann", why="so", topic="sums")
        for row, text in (pair for chunk in waiting for pair in chunk):
            assert source.dataset[row]["prompt"] == text


class Injecting(TrainerCallback):
    """Adds prompts in the middle of steps, by their numbers."""

    def __init__(self, source: PromptSource, by_step: dict[int, list[str]]) -> None:
        self.source, self.by_step = source, by_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if prompts := self.by_step.get(state.global_step):
            self.source.inject(prompts, by="ann", why="they lag", topic="vowels")


def trained(folder: Path, checkpoint: str | None = None, **options: Any) -> tuple[Any, list[list[str]], FakeLink]:
    """A GRPO run, and the prompts of each generation."""
    source = PromptSource({"vowels": list("aeiou"), "others": list("bcdfgh")}, seed=2, cap=3, share=0.7)
    job: Any = grpo(
        folder, data=source.dataset, **{"max_steps": 12, "save_strategy": "steps", "save_steps": 6} | options
    )
    line, seen = FakeLink({3: ("data.mixture", {"vowels": 0.9, "others": 0.1})}), []
    attach(job, link=line, mixture=source)
    job.add_callback(Injecting(source, {2: ["aa", "ee"], 4: ["ii", "oo"], 8: ["uu"]}))
    generate = job._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        seen.append([row["prompt"] for row in inputs])
        return generate(inputs)

    job._generate_and_score_completions = watched
    job.train(resume_from_checkpoint=checkpoint)
    return job, seen, line


def test_a_grpo_run_draws_injected_prompts_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    straight, seen, line = trained(tmp_path)
    assert all(len(set(rows)) == 1 for rows in seen), "groups are whole"
    drawn = [rows[0] for rows in seen]
    assert {"ii", "oo"} & set(drawn) and not {"ii", "oo"} & set(drawn[:6]), "two chunks were drawn ahead"
    messages = [message for message in line.sent if isinstance(message, PromptsInjected)]
    assert [(message.step, message.evicted) for message in messages] == [(2, 0), (4, 1), (8, 1)]
    resumed, again, _ = trained(tmp_path, str(tmp_path / "checkpoint-6"))
    assert again == seen[6:]
    assert equal(weights(straight), weights(resumed))
