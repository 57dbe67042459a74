"""The environment `repair`: instances, workspaces, patches, tests in the sandbox, sessions, checkouts."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from oven_core.errors import ConfigError, ProcessError, UnknownNameError
from oven_llm.sandbox.limits import Limits
from oven_recipes.environments.repair_environment import RepairEnvironment
from oven_recipes.environments.repair_instance import Instance, read_instances
from oven_recipes.environments.repair_session import RepairSession
from oven_recipes.environments.repair_task_generator import FUNCTION_KINDS, TrustedTests, generate_tasks, git_patch
from oven_recipes.environments.repositories import Repositories
from oven_recipes.environments.sandboxed_tests import Outcome, SandboxedTests
from oven_recipes.repair.demonstrations import Habits, demonstrate

FILES = {
    "shop.py": "def total(price):\n    return price - 3\n",
    "test_shop.py": "from shop import total\ndef test_a():\n    assert total(1) == 4\ndef test_b():\n    total(1)\n",
}
SHOP = Instance(
    instance_id="shop-1",
    repo="owner/shop",
    base_commit="0" * 40,
    problem_statement="shop.py: total(price) returns price plus 3",
    FAIL_TO_PASS=("test_shop.py::test_a",),
    PASS_TO_PASS=("test_shop.py::test_b",),
    files=FILES,
)


@pytest.fixture(scope="module")
def sandboxed() -> SandboxedTests:
    return SandboxedTests()


def test_an_attempt_is_rewarded_by_the_tests_that_it_turns(sandboxed: SandboxedTests) -> None:
    session = RepairSession(SHOP, FILES, sandboxed)
    assert session.call("run_tests", {}).text == "1 of 2 failed: test_a"
    fixed = session.call("edit", {"path": "shop.py", "old": "price - 3", "new": "price + 3"})
    assert (fixed.text, fixed.reward, fixed.failed) == ("edited", 0.5, False)
    assert session.call("run_tests", {}).text == "2 passed"
    before = session.solved
    assert not before  # nothing is handed in
    broken = session.call("edit", {"path": "shop.py", "old": "return", "new": "retrun"})
    assert broken.reward == -1
    mended = session.call("edit", {"path": "shop.py", "old": "retrun", "new": "return"})
    assert mended.reward == 1 and mended.digest == fixed.digest
    assert session.call("submit", {}).text == "submitted"
    assert session.solved
    late = session.call("edit", {"path": "shop.py", "old": "3", "new": "4"})
    assert late.failed and "submitted" in late.text and session.solved


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("delete", {}, "no tool 'delete'; there are list_files, read"),
        ("read", {}, "read takes path"),
        ("read", {"path": 3}, "path must be a string"),
        ("read", {"path": "../../etc/passwd"}, "no file ../../etc/passwd"),
        ("edit", {"path": "shop.py", "old": "r", "new": "x"}, "old occurs 4 times in shop.py; it must occur once"),
        ("edit", {"path": "shop.py", "old": "", "new": "x"}, "old is empty"),
        ("edit", {"path": "test_shop.py", "old": "== 4", "new": "== -2"}, "contains tests"),
        ("edit", {"path": "./test_shop.py", "old": "== 4", "new": "== -2"}, "contains tests"),
        ("search", {"text": ""}, "text is empty"),
        ("list_files", {"folder": "nowhere"}, "no folder nowhere"),
    ],
)
def test_a_wrong_call_is_told_to_the_policy_and_changes_nothing(
    tool: str, arguments: dict[str, object], message: str, sandboxed: SandboxedTests
) -> None:
    session = RepairSession(SHOP, FILES, sandboxed)
    before = session.digest
    result = session.call(tool, arguments)
    assert result.failed and message in result.text
    assert session.digest == before and result.reward == 0


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("while True:\n    pass\n", "timeout"),
        ("import os\nos._exit(0)\n", "died"),
        ("def total(price):\n    raise SystemExit\n", "died"),
        ("import __main__\n__main__.FINAL({'test_shop.py::test_a': 'passed'})\n", "failed"),
        ("def total(price) return", "failed"),
    ],
)
def test_code_that_does_not_end_or_ends_its_process_passes_nothing(code: str, ended: str) -> None:
    tests = SandboxedTests({"functions": Limits(block_s=0.5)})
    outcomes = tests.outcomes({**FILES, "shop.py": code}, SHOP.tests)
    assert set(outcomes.values()) == {ended}
    session = RepairSession(SHOP, {**FILES, "shop.py": code}, tests)
    assert ended in (session.call("run_tests", {}).text if ended != "failed" else "failed")
    assert tests.runs["remembered"] == 1


def sent(text: str) -> str:
    return f"def total(price):\n    {text}\n    return 4\n"


@pytest.mark.parametrize(
    ("code", "outcome", "kind"),
    [
        (sent("while True: print('x' * 1000)"), "timeout", "timeout"),
        (sent("for _ in range(2000): print('x' * 100)"), "passed", "completed"),
        (sent("import ctypes; ctypes.string_at(0)"), "died", "died"),
        (sent("raise KeyboardInterrupt"), "died", "error"),
        (sent("open('/tmp/outside', 'w')"), "failed", "completed"),
        (sent("open(__file__, 'w')"), "failed", "completed"),
        (sent("import os; os.kill(os.getppid(), 9)"), "failed", "completed"),
    ],
)
def test_runs_are_counted_by_how_they_ended(code: str, outcome: str, kind: str) -> None:
    tests = SandboxedTests({"functions": Limits(block_s=0.5, output_bytes=20_000)})
    assert tests.outcomes({**FILES, "shop.py": code}, SHOP.FAIL_TO_PASS) == {SHOP.FAIL_TO_PASS[0]: outcome}
    assert dict(tests.runs) == {kind: 1}


NO_PYTEST = {"pytest.py": "raise ImportError('it is not installed')\n", "test_a.py": "def test_a():\n    pass\n"}


def test_a_machine_that_cannot_run_tests_is_no_failed_test() -> None:
    tests = SandboxedTests()
    with pytest.raises(ProcessError, match="pytest cannot be imported in the sandbox"):
        tests.outcomes(NO_PYTEST, ("test_a.py::test_a",), "pytest")
    assert not tests.runs
    with pytest.raises(ProcessError, match="none of the 1 tests of shop-1 was found"):
        RepairSession(SHOP.model_copy(update={"FAIL_TO_PASS": ("no.py::a",), "PASS_TO_PASS": ()}), FILES, Absent())


class Absent(TrustedTests):
    """Of none of the tests there is a file."""

    def outcomes(self, files: Mapping[str, str], tests: Sequence[str], *_: object) -> dict[str, Outcome]:
        return dict.fromkeys(tests, "missing")


def test_a_test_that_is_not_there_keeps_none_of_the_others_from_running() -> None:
    files = {
        "test_a.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_a(n):\n    assert n == 1\n",
        "test_b.py": "import nothing_of_the_kind\n",
    }
    wanted = ("test_a.py::test_a[1]", "test_a.py::test_a[2]", "test_a.py::gone", "test_b.py::test_b", "no.py::test")
    outcomes = SandboxedTests().outcomes(files, wanted, "pytest")
    assert list(outcomes.values()) == ["passed", "failed", "missing", "failed", "missing"]


class TestInstances:
    def row(self, **changes: object) -> dict[str, object]:
        published = SHOP.model_dump(exclude={"files"}) | {
            "FAIL_TO_PASS": json.dumps(SHOP.FAIL_TO_PASS),
            "PASS_TO_PASS": json.dumps(SHOP.PASS_TO_PASS),
            "difficulty": "15 min",
        }
        return published | changes

    def test_a_published_file_is_read_and_refused_without_its_repository(self, tmp_path: Path) -> None:
        file = tmp_path / "lite.jsonl"
        file.write_text(json.dumps(self.row()) + "\n\n" + json.dumps(self.row(instance_id="shop-2")) + "\n")
        instances = list(read_instances(file))
        assert [instance.instance_id for instance in instances] == ["shop-1", "shop-2"]
        assert instances[0].FAIL_TO_PASS == SHOP.FAIL_TO_PASS and instances[0].test_paths == {"test_shop.py"}
        with pytest.raises(ConfigError, match=r"owner/shop, but there is no clone at .*git clone https://github"):
            Repositories(tmp_path).check(instances[0])
        with pytest.raises(ConfigError, match="--repositories"):
            Repositories().read_files(instances[0])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is empty"),
            ("\n", "contains no instances"),
            ('{"repo": ', "line 1: cut"),
            ('{"repo": \n', "line 1: not json"),
            ("[1]\n", "a list instead of an object"),
            ('{"instance_id": "a"}\n', "Field required"),
        ],
    )
    def test_a_wrong_file_is_named(self, text: str, message: str, tmp_path: Path) -> None:
        file = tmp_path / "lite.jsonl"
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            list(read_instances(file))

    def test_two_instances_of_one_id_are_refused_where_they_differ(self, tmp_path: Path) -> None:
        file = tmp_path / "lite.json"
        file.write_text(json.dumps([self.row(), self.row()]))
        assert len(list(read_instances(file))) == 2
        file.write_text(json.dumps([self.row(), self.row(base_commit="1" * 40)]))
        with pytest.raises(ConfigError, match="another instance also has the id 'shop-1'"):
            list(read_instances(file))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"FAIL_TO_PASS": "[]"}, "which show that it is solved"),
            ({"FAIL_TO_PASS": "not json"}, "FAIL_TO_PASS"),
            ({"repo": "../../etc"}, "owner/name"),
            ({"base_commit": 7}, "base_commit"),
        ],
    )
    def test_a_wrong_instance_is_named(self, changes: dict[str, object], message: str, tmp_path: Path) -> None:
        file = tmp_path / "lite.json"
        file.write_text(json.dumps([self.row(**changes)]))
        with pytest.raises(ConfigError, match=message):
            list(read_instances(file))
        with pytest.raises(ConfigError, match="cannot be read"):
            list(read_instances(tmp_path / "other.json"))


def test_a_checkout_is_worked_on_at_its_commit_and_its_tests_run_by_pytest(tmp_path: Path) -> None:
    path = tmp_path / "owner__shop"
    path.mkdir()
    (path / "shop.py").write_text(FILES["shop.py"])
    (path / "logo.png").write_bytes(b"\xff\xd8")
    files = {"tests/__init__.py": "", "version.py": "# $Format:%H$\n"}
    files[".gitattributes"] = "tests export-ignore\nversion.py export-subst\n"
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    (path / "link.py").symlink_to("shop.py")
    environment = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path)}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=path, check=True, env=environment)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=path, check=True, capture_output=True, env=environment)
    (path / "shop.py").write_text("not what was committed")
    test = (
        "from shop import total\n\n\nclass TestTotal:\n    def test_a(self, tmp_path):\n        assert total(1) == 4\n"
    )
    instance = SHOP.model_copy(
        update={
            "files": {},
            "base_commit": commit.stdout.decode().strip(),
            "test_patch": git_patch({}, {"tests/test_shop.py": test, "tests/data.txt": "4\n"}),
            "FAIL_TO_PASS": ("tests/test_shop.py::TestTotal::test_a",),
            "PASS_TO_PASS": (),
        }
    )
    repositories = Repositories(tmp_path)
    assert repositories.read_files(instance) == files | {
        "shop.py": FILES["shop.py"], "tests/test_shop.py": test, "tests/data.txt": "4\n",
    }  # fmt: skip
    environment_ = RepairEnvironment({"shop-1": instance}, repositories.read_files, SandboxedTests())
    environment_.reset(instance_id="shop-1", prompt=[])
    assert environment_.run_tests() == "1 of 1 failed: TestTotal::test_a"
    assert "contains tests" in environment_.edit("tests/data.txt", "4", "5"), (
        "what the patch of tests brings stays as it is"
    )
    assert environment_.edit("shop.py", "- 3", "+ 3") == "edited"
    assert environment_.newest_call is not None and environment_.newest_call.reward == 1
    environment_.submit()
    assert environment_.solved and environment_.get_reward() == 1 and environment_.feedback is None
    with pytest.raises(ConfigError, match="git apply failed"):
        repositories.read_files(instance.model_copy(update={"test_patch": git_patch({"a.py": "a\n"}, {"a.py": "b\n"})}))
    with pytest.raises(ConfigError, match="does not have the commit 1111"):
        repositories.check(instance.model_copy(update={"base_commit": "1" * 40}))
    with pytest.raises(UnknownNameError, match="shop-1"):
        environment_.reset(instance_id="shop-2")
    parsed = subprocess.run(["git", "rev-parse", "HEAD:shop.py"], cwd=path, check=True, capture_output=True)
    blob = parsed.stdout.decode().strip()
    (path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(ConfigError, match=r"lacks 'shop.py'; .* make a full clone"):
        repositories.read_files(instance)


class TestGeneratedTasks:
    def test_tasks_are_reproducible_and_the_splits_share_no_function(self) -> None:
        train, unseen = generate_tasks(0, 200), generate_tasks(0, 100, evaluation=True)
        assert [task.instance_id for task in generate_tasks(0, 200)] == [task.instance_id for task in train]
        right = {task.solution[path(task)] for task in train}
        assert not right & {task.solution[path(task)] for task in unseen}
        assert {task.instance_id.split("-")[0] for task in train} == {kind.name for kind in FUNCTION_KINDS}
        with pytest.raises(ValueError, match="unknown kind of function 'cube'"):
            generate_tasks(0, 1, kinds=("cube",))

    def test_each_fails_what_it_says_and_its_patch_passes_all(self) -> None:
        for task in generate_tasks(1, 50) + generate_tasks(1, 50, with_neighbour=True):
            before = TrustedTests().outcomes(task.files, task.tests)
            assert {name for name, outcome in before.items() if outcome == "failed"} == set(task.FAIL_TO_PASS)
            after = TrustedTests().outcomes(task.files | task.solution, task.tests)
            assert set(after.values()) == {"passed"}

    def test_git_applies_its_patch(self, tmp_path: Path) -> None:
        for task in generate_tasks(1, 5, with_neighbour=True):
            (tmp_path / path(task)).write_text(task.files[path(task)])
            subprocess.run(["git", "apply"], input=task.patch, cwd=tmp_path, text=True, check=True)
            assert (tmp_path / path(task)).read_text() == task.solution[path(task)]

    def test_the_sandbox_agrees_with_the_quick_way(self, sandboxed: SandboxedTests) -> None:
        for task in generate_tasks(2, 6, with_neighbour=True):
            assert sandboxed.outcomes(task.files, task.tests) == TrustedTests().outcomes(task.files, task.tests)

    def test_a_demonstration_without_mistakes_solves_its_task(self) -> None:
        rng = random.Random(0)
        for task in generate_tasks(3, 50) + generate_tasks(3, 50, with_neighbour=True):
            session = RepairSession(task, task.files, TrustedTests())
            for message in demonstrate(task, Habits(correct_edit=1.0, look_around=1.0, run_tests=1.0), rng):
                for call in message.get("tool_calls", ()):
                    assert not session.call(call["function"]["name"], json.loads(call["function"]["arguments"])).failed
            assert session.solved

    def test_a_demonstration_with_mistakes_may_recover(self) -> None:
        rng = random.Random(0)
        habits = Habits(correct_edit=0.0, look_around=0.0, run_tests=1.0, retry=1.0)
        lengths = {len(demonstrate(task, habits, rng)) for task in generate_tasks(4, 50)}
        assert max(lengths) == 14  # read, edit, run_tests, edit, run_tests, submit; and the end


def path(instance: Instance) -> str:
    return instance.problem_statement.partition(":")[0]
