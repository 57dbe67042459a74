"""Actions tried at the student's state, in the environment `repair`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command_line import call
from tests.support.traces import answered, called, reply

from oven_core.errors import ConfigError
from oven_recipes.environments.small_functions import tasks
from oven_recipes.environments.tried_actions import tried_actions
from oven_runs.traces import jsonl
from oven_runs.traces.records import Message, Task, Trace, TraceStep

(TASK,) = tasks("tried", 1)
PATH, SOURCE = next((path, text) for path, text in TASK.files.items() if path not in TASK.test_paths)
LINE = next(line for line in SOURCE.splitlines() if line.startswith(" ") and SOURCE.count(line.strip()) == 1)
SMALLER, LARGER = LINE.strip(), LINE
"""Two texts of an edit, which leave the same file."""


def edit(old: str) -> Message:
    return called("edit", path=PATH, old=old, new=old.replace(LINE.strip(), "pass"))


def trace(task: str = TASK.instance_id) -> Trace:
    first = TraceStep(action=called("read", path=PATH), result=answered(SOURCE, "read"), reward=0.0)
    second = TraceStep(action=edit(SMALLER), result=answered("edited", "edit"), reward=0.0, outcome="another's")
    return Trace(id="t", task=Task(id=task), prompt=(Message(role="user", content="go"),), steps=(first, second))


@pytest.fixture
def instances(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text(TASK.model_dump_json() + "\n")
    return path


def test_actions_are_equivalent_that_leave_the_same_files_and_answer_alike(instances: Path) -> None:
    made = trace()
    asked = [called("submit"), called("list_files", folder=""), called("read", path=f"./{PATH}")]
    replies = {0: [reply(made, 0, name, one) for name, one in zip("abc", asked, strict=True)]}
    replies[1] = [reply(made, 1, "a", edit(LARGER)), reply(made, 1, "b", Message(role="assistant", content="no"))]
    replies[1].append(reply(made, 1, "c", None))
    found = tried_actions(instances)(made, replies)
    assert found is not None
    (first, second), tried = found[0].steps, found[1]
    assert [one.outcome == first.outcome for one in tried[0]] == [False, False, True], "all three change nothing"
    assert [one.outcome == second.outcome for one in tried[1]] == [True, False, False]
    assert [one.outcome for one in tried[1][1:]] == ["", ""], "nothing was tried"
    assert found[0].digests() == made.digests()


def test_a_trace_of_another_task_is_left_as_it_is(instances: Path) -> None:
    assert tried_actions(instances)(trace("another"), {}) is None


def test_equivalent_edits_make_no_pair(instances: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = trace(), instances.parent
    replies = [reply(made, 1, name, edit(LARGER)) for name in "abc"]
    jsonl.write(folder / "traces.jsonl", [made])
    jsonl.write(folder / "replies.jsonl", replies)
    files = [str(folder / "traces.jsonl"), str(folder / "replies.jsonl"), "--permutations", "19", "--json"]
    assert call("traces pairs", files) == 0, "by their form they differ"
    capsys.readouterr()
    assert call("traces pairs", [*files, "--tasks", str(instances)]) == 1
    assert json.loads(capsys.readouterr().out)["abstentions"] == {"not asked": 1, "equivalent": 1}
    jsonl.write(folder / "traces.jsonl", [trace("another")])
    with pytest.raises(ConfigError, match="has no task of the 1 traces"):
        call("traces pairs", [*files, "--tasks", str(instances)])
