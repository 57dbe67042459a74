"""Replay's parts without a network: order, prefixes, answers that are none, the report, the forecast, bad input."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import call
from tests.support.made_traces import edit, made_traces

from oven_controller.cli.traces_replay import forecast_all, spread_traces
from oven_core.errors import ConfigError, StoreInUseError
from oven_llm.providers.conversation import Conversation, ModelReply, SamplesMissing
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.trace_replay import cost_forecast, replay_report
from oven_llm.trace_replay.replay import REFUSING, Replay, Teacher, in_prefix_order
from oven_llm.trace_replay.replies_file import RepliesFile
from oven_llm.trace_replay.teachers_file import TeacherSettings, TeachersFile
from oven_runs.settings.judge_providers import Price
from oven_runs.traces import jsonl
from oven_runs.traces.records import Message, Reply, Task, ToolCall, Trace

TRACES = made_traces(3, 4, seed=2)
STATES = 12


def settings(**more: Any) -> TeacherSettings:
    return TeacherSettings.model_validate({"family": "f", "provider": "compatible", "model": "m", "lanes": 1} | more)


def answer(line: int = 0, **more: Any) -> ModelReply:
    name, arguments = edit(line, "s")
    reply: dict[str, Any] = {
        "text": "",
        "calls": (ToolCall(id="c", name=name, arguments=arguments),),
        "usage": Usage(100, 10, 40),
        "cost_usd": 0.01,
        "model": "m-1",
        "finish": "tool_calls",
    }
    return ModelReply(**(reply | more))


class Model:
    """Answers, or fails as it is told, in this order; then it answers always."""

    name, model = "scripted", "m"

    def __init__(self, *script: ModelReply | Exception) -> None:
        self.asked: list[Sequence[Message]] = []
        self._script = list(script)

    async def ask(self, conversation: Conversation, timeout_s: float, samples: int = 1) -> list[ModelReply]:
        self.asked.append(conversation.messages)
        await asyncio.sleep(0)
        shown_text = self._script.pop(0) if self._script else answer()
        if isinstance(shown_text, Exception):
            raise shown_text
        return [shown_text] * samples

    async def close(self) -> None:
        pass


def replayed(tmp_path: Path, model: Model, traces: Sequence[Trace] = TRACES, **more: Any) -> tuple[Replay, list[Reply]]:
    teacher = settings(**more)
    path = tmp_path / "replies.jsonl"
    file = RepliesFile(path, traces, {"t": teacher.described()}, {"t": "f"})
    replay = Replay(traces, [Teacher("t", teacher, model)], file)
    asyncio.run(replay.run())
    file.close()
    return replay, list(jsonl.read(path, Reply)) if path.stat().st_size else []


def test_states_are_asked_in_prefix_order_and_tasks_stay_together(tmp_path: Path) -> None:
    model = Model()
    replayed(tmp_path, model)
    for trace in range(3):
        lane = model.asked[4 * trace : 4 * trace + 4]
        assert all(list(after[: len(before)]) == list(before) for before, after in itertools.pairwise(lane))
    tasks = [trace.model_copy(update={"task": Task(id=f"task{n % 2}")}) for n, trace in enumerate(TRACES)]
    assert [trace.id for trace in in_prefix_order(tasks)] == [TRACES[index].id for index in (0, 2, 1)]


@pytest.mark.parametrize(
    ("shown_text", "failure"),
    [
        (answer(finish="refusal", calls=(), text="No."), "refusal"),
        (answer(finish="length"), "truncated"),
        (answer(calls=(), text=" "), "no_action"),
        (ModelFailure("timeout"), "timeout"),
        (ValueError("no API takes this"), "malformed_request"),
    ],
)
def test_an_answer_without_an_action_is_a_failure_with_its_cost(tmp_path: Path, shown_text: Any, failure: str) -> None:
    replay, replies = replayed(tmp_path, Model(shown_text))
    assert (replies[0].failure, replies[0].action) == (failure, None)
    assert replies[0].usd == (0.01 if isinstance(shown_text, ModelReply) else None)
    again = failure == "timeout"  # which may be better luck the next time
    assert replay.outcome.failed == {failure: 1} and replay.outcome.answered == STATES - 1 + again


def test_only_an_unreadable_answer_is_requested_again(tmp_path: Path) -> None:
    model = Model(ModelFailure("bad_response"), ModelFailure("bad_response"), answer())
    replay, replies = replayed(tmp_path, model)
    assert len(model.asked) == STATES + 2 and replay.outcome.answered == STATES
    assert replay.outcome.faults == {"bad_response": 2} and not any(reply.failure for reply in replies)


def test_a_refusal_is_final_even_if_another_sample_failed(tmp_path: Path) -> None:
    refused = SamplesMissing(ModelFailure("timeout"), [answer(finish="refusal", calls=(), text="No.")])
    _, replies = replayed(tmp_path, Model(refused), samples=2)
    assert [reply.failure for reply in replies[:2]] == ["refusal", "timeout"]
    file = RepliesFile(tmp_path / "replies.jsonl", TRACES, {}, {})
    assert not file.wants(("t", TRACES[0].id, 0))
    file.close()


def test_the_option_again_retries_final_failures_once(tmp_path: Path) -> None:
    refused = answer(finish="refusal", calls=(), text="No.")
    replayed(tmp_path, Model(refused, ModelFailure("malformed_request")))

    def called(*script: ModelReply | Exception) -> tuple[int, int]:
        """How many questions a call with --again asked, and how many it leaves."""
        teacher, model = settings(), Model(*script)
        file = RepliesFile(tmp_path / "replies.jsonl", TRACES, {"t": teacher.described()}, {"t": "f"}, again=True)
        asyncio.run(Replay(TRACES, [Teacher("t", teacher, model)], file).run())
        remaining = sum(file.wants(("t", trace.id, step)) for trace in TRACES for step in range(4))
        file.close()
        return len(model.asked), remaining

    assert called(refused, refused) == (2, 0), "what is refused again is neither asked about nor left"
    assert called(ModelFailure("timeout"), refused) == (2, 1), "a time-out may be better luck the next time"
    file = RepliesFile(tmp_path / "replies.jsonl", TRACES, {}, {})
    assert [file.wants(("t", TRACES[0].id, step)) for step in range(3)] == [True, False, False]
    file.close()


def test_a_rejected_state_is_settled_if_the_teacher_answers_others(tmp_path: Path) -> None:
    (tmp_path / "deaf").mkdir()
    model = Model(answer(), ModelFailure("bad_request"))
    replayed(tmp_path, model)
    file = RepliesFile(tmp_path / "replies.jsonl", TRACES, {}, {})
    assert len(model.asked) == STATES and not file.wants(("t", TRACES[0].id, 1))
    file.close()
    replayed(tmp_path / "deaf", Model(*[ModelFailure("bad_request")] * 3))
    file = RepliesFile(tmp_path / "deaf" / "replies.jsonl", TRACES, {}, {})
    assert file.wants(("t", TRACES[0].id, 0)), "its settings are wrong, and are mended before the next call"
    file.close()


def test_few_failures_get_a_second_pass_and_many_do_not(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir()
    many.mkdir()
    replay, replies = replayed(few, Model(ModelFailure("timeout")))
    assert replay.outcome.answered == STATES and len(replies) == STATES + 1
    model = Model(*[ModelFailure("timeout")] * STATES)
    replay, _ = replayed(many, model)
    assert replay.outcome.answered == 0 and len(model.asked) == STATES


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    first = RepliesFile(tmp_path / "r.jsonl", TRACES, {}, {})
    with pytest.raises(StoreInUseError, match=f"another process, {os.getpid()}, writes to .*r.jsonl; wait for it"):
        RepliesFile(tmp_path / "r.jsonl", TRACES, {}, {})
    first.close()
    RepliesFile(tmp_path / "r.jsonl", TRACES, {}, {}).close()


def test_a_question_in_flight_after_an_earlier_failure_is_detected(tmp_path: Path) -> None:
    def opened() -> RepliesFile:
        return RepliesFile(tmp_path / "r.jsonl", TRACES, {"t": {}}, {"t": "f"})

    key = ("t", TRACES[0].id, 2)
    failed = Reply(
        trace=key[1], step=2, state=TRACES[0].digests()[2], teacher="t", family="f", failure="timeout"
    )  # fmt: skip
    file = opened()
    file.begin(key)
    file.add(key, [failed])
    assert file.wants(key)  # a time-out may be better the next time
    file.close()
    file = opened()
    assert file.interrupted == 0 and file.wants(key)
    file.begin(("t", TRACES[0].id, 3))
    file.void(("t", TRACES[0].id, 3))
    file.begin(key)
    file.close()
    file = opened()
    assert file.interrupted == 1 and not file.wants(key) and file.wants(("t", TRACES[0].id, 3))
    file.close()
    (tmp_path / "r.jsonl.asked").write_text('{"kind": "asked"}\n')
    with pytest.raises(ConfigError, match="damaged"):
        opened()


def reply(step: int, line: int | None, *, trace: Trace = TRACES[0], teacher: str = "t", **more: Any) -> Reply:
    shown_text: dict[str, Any] = {"tokens_in": 100, "tokens_cached": 50, "tokens_out": 10, "usd": 0.5, "seconds": 2.0}
    name, arguments = edit(line or 0, f"{trace.id}s{step:03}")
    action = Message(role="assistant", calls=(ToolCall(name=name, arguments=arguments),))
    shown_text |= {"failure": "timeout"} if line is None else {"action": action}
    fixed = {"trace": trace.id, "step": step, "state": trace.digests()[step], "teacher": teacher, "family": teacher}
    return Reply.model_validate(fixed | shown_text | more)


def test_the_report_counts_states_dollars_seconds_and_agreement() -> None:
    trace = TRACES[0]
    student = [json.loads(step.action.calls[0].arguments)["line"] for step in trace.steps]
    replies = [
        reply(0, student[0]),
        reply(0, student[0] + 1, sample=1),  # two samples that differ: it agrees by half
        reply(1, student[1] + 1),
        reply(2, None, usd=None, tokens_in=0, tokens_out=0),
        reply(3, student[3], seconds=9.0),
        reply(3, student[3], state="0" * 16),
        reply(1, student[1], teacher="u", seconds=4.0),
    ]
    result = replay_report.report([trace], replies)
    teacher = result.teachers["t"]
    assert (teacher.states, teacher.answered, teacher.replies, teacher.failures) == (
        4,
        3,
        5,
        {"timeout": 1},
    )
    assert teacher.agreeing / teacher.compared == pytest.approx((0.5 + 0 + 1) / 3)
    assert result.step_seconds == [4.0] and result.replies_elsewhere == 1
    assert result.usd_per_trace is None and result.whole_traces == 0  # u was asked at one step only
    whole = replay_report.report([trace], replies[:5])
    assert whole.usd_per_trace == 2.0 and whole.whole_traces == 1
    assert "below $5" in "\n".join(replay_report.lines(whole))
    unknown = replay_report.report([trace], [*replies[:4], reply(3, 0, usd=None)])
    assert unknown.usd_per_trace is None and replay_report.as_json(unknown)["teachers"]["t"]["usd"] is None
    assert "price unknown of 1 replies" in "\n".join(replay_report.lines(unknown))
    assert unknown.teachers["t"].unpriced == 1


def teachers(**more: Any) -> TeachersFile:
    return TeachersFile(teachers={"t": settings(base_url="http://127.0.0.1:9/v1", **more)})


def test_a_forecast_is_fitted_to_what_replies_were_billed(tmp_path: Path) -> None:
    traces, file = made_traces(20, 8, seed=3), teachers(price=Price(input=3, output=15, cached_input=0.3))

    def billed(trace: Trace) -> list[Reply]:
        sizes = cost_forecast.state_sizes(trace)
        result = []
        for size in sizes:
            tokens, cached = round(30 + size.characters / 4.3), round((30 + size.prefix / 4.3) * bool(size.prefix))
            usd = ((tokens - cached) * 3 + cached * 0.3 + 21 * 15) / 1e6
            paid: dict[str, Any] = {"tokens_in": tokens, "tokens_cached": cached, "tokens_out": 21, "usd": usd}
            result.append(reply(size.step, 0, trace=trace, **paid))
        return result

    path = tmp_path / "replies.jsonl"
    (before,) = forecast_all(file, file.endpoints(), traces, path)
    assert before.fitted_to == 0 and before.states == 160 and before.usd
    assert before.low == before.usd / 2 and before.high == before.usd * 2
    jsonl.write(path, [item for trace in traces[:4] for item in billed(trace)])
    (result,) = forecast_all(file, file.endpoints(), traces, path)
    due = sum(item.usd or 0 for trace in traces[4:] for item in billed(trace))
    assert (result.states, result.fitted_to) == (128, 32)
    assert result.usd == pytest.approx(due, rel=0.01)
    assert result.usd and result.low and result.high and result.low <= result.usd <= result.high
    assert "fitted to 32 states" in cost_forecast.lines([result])[0]


def test_an_unknown_price_is_reported_and_never_0(tmp_path: Path) -> None:
    file = teachers()
    (result,) = forecast_all(file, file.endpoints(), TRACES, tmp_path / "none.jsonl")
    assert result.usd is None and result.tokens_in > 0
    assert "the price of t is unknown" in "\n".join(cost_forecast.lines([result]))
    assert cost_forecast.as_json([result])["usd"] is None
    path = tmp_path / "replies.jsonl"
    jsonl.write(path, [reply(0, 0, usd=None), reply(1, 0)])
    (result,) = forecast_all(file, file.endpoints(), TRACES, path)
    shown_text = cost_forecast.as_json([result])
    assert shown_text["spent"] is None and shown_text["teachers"]["t"]["spent"] is None


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "teachers.yaml"
    path.write_text(text)
    return path


ONE = "teachers:\n  t: {family: f, provider: compatible, model: m, base_url: 'http://127.0.0.1:9/v1'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("teachers: {}", "at least 1"),
        (ONE + ", samples: 0}", "greater than or equal to 1"),
        (ONE + ", sample: 2}", "did you mean|no setting"),
        ("teachers:\n  t: {provider: compatible, model: m}", "family"),
        ("teachers:\n  t: {family: f, provider: compatibel, model: m}", "did you mean 'compatible'"),
        ("teachers:\n  t: {family: f, provider: compatible, model: m}", "needs teachers.t.base_url"),
        ("teachers:\n  't t\\e[2J': {family: f, provider: compatible, model: m}", "cannot be a teacher's name"),
        (ONE.replace("  t:", "  été:") + "}", "cannot be a teacher's name"),
        (ONE.replace("  t:", "  -t:") + "}", "cannot be a teacher's name"),
        (ONE + "}\nbudget: {usd: 0}", "greater than 0"),
        (ONE + "}\nbudget: {usd: 1}", "the price of 'm'"),
    ],
)
def test_an_invalid_file_of_teachers_is_refused_with_a_remedy(tmp_path: Path, text: str, message: str) -> None:
    jsonl.write(tmp_path / "t.jsonl", TRACES)
    arguments = [str(tmp_path / "t.jsonl"), "--teachers", str(written(tmp_path, text))]
    with pytest.raises(ConfigError, match=message):
        call("traces replay", [*arguments, "--out", str(tmp_path / "r.jsonl")])
    assert not (tmp_path / "r.jsonl").exists()


def test_traces_without_steps_or_with_equal_ids_are_refused(tmp_path: Path) -> None:
    empty, twice, none = (tmp_path / name for name in ("empty.jsonl", "twice.jsonl", "none.jsonl"))
    empty.touch()
    jsonl.write(twice, [TRACES[0], TRACES[0]])
    jsonl.write(none, [TRACES[0].model_copy(update={"steps": ()})])
    for path, message in ((empty, "empty"), (twice, "two traces have the id"), (none, "no step")):
        with pytest.raises(ConfigError, match=message):
            spread_traces(path)
    many = tmp_path / "many.jsonl"
    jsonl.write(many, made_traces(10, 1, seed=4))
    assert [trace.id for trace in spread_traces(many, first=2)] == ["t0002", "t0007"]


@pytest.mark.parametrize("kind", sorted(REFUSING))
def test_a_failure_that_would_recur_gives_up_the_teacher_at_once(tmp_path: Path, kind: Kind) -> None:
    model = Model(*[ModelFailure(kind)] * 20)
    replay, _ = replayed(tmp_path, model)
    assert len(model.asked) == 1 and kind in replay.outcome.given_up["t"]
