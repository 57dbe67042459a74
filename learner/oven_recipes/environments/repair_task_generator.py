"""Generates repair tasks. A task is a module with a small function that has a bug or lacks a feature. The problem
statement describes the correct function in words, so a policy can repair it without running the tests. A hash of the
correct code decides whether a function is reserved for evaluation, so all processes and seeds agree on it."""

from __future__ import annotations

import difflib
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from oven_recipes.environments.repair_instance import Instance
from oven_recipes.environments.sandboxed_tests import Framework, Outcome

REPO: Final = "oven/small-functions"
COMMIT: Final = "0" * 40
"""Placeholder commit. Generated repositories have no history."""
HELD_OUT_DIVISOR: Final = 5
"""One in this many functions is reserved for evaluation."""
MAX_DRAWS: Final = 200
"""Maximum number of random draws for a bug or for each new task. A draw succeeds with a probability above 0.1."""

FUNCTION_NAMES: Final = ("total", "score", "charge", "level", "limit", "offset", "rate", "weight", "share", "width")
NUMBER_NAMES: Final = ("price", "count", "size", "depth", "speed", "mass")
LIST_NAMES: Final = ("items", "parts", "rows", "marks")
MODULE_NAMES: Final = ("shop", "units", "stock", "rules")
BROKEN_FUNCTION_TEST_COUNT: Final = 4
TEST_NUMBERS_OF_NEIGHBOUR: Final = (1, 2)
"""Numbers in the names of the neighbour's tests. A neighbour is a second, correct function in the module."""


@dataclass(frozen=True)
class FunctionKind:
    """A template for functions. In `description` and `body`, {a}, {b} and {xs} stand for the names of parameters, and
    {k} for a constant."""

    name: str
    description: str
    body: tuple[str, ...]
    parameters: tuple[str, ...]
    guard_lines: int = 0
    """Number of lines at the start of the body that handle a special case. A bug may delete them."""


FUNCTION_KINDS: Final = (
    FunctionKind("linear", "returns {a} times {k} plus {b}", ("return {a} * {k} + {b}",), ("a", "b")),
    FunctionKind("difference", "returns {a} minus {b} times {k}", ("return {a} - {b} * {k}",), ("a", "b")),
    FunctionKind("at_least", "returns {a} but at least {k}", ("if {a} < {k}:", "    return {k}", "return {a}"),
                 ("a",), 2),
    FunctionKind("at_most", "returns {a} but at most {k}", ("if {a} > {k}:", "    return {k}", "return {a}"),
                 ("a",), 2),
    FunctionKind("largest", "returns the largest of {xs} plus {k}", ("return max({xs}) + {k}",), ("xs",)),
    FunctionKind("smallest", "returns the smallest of {xs} minus {k}", ("return min({xs}) - {k}",), ("xs",)),
    FunctionKind("first", "returns the first {k} of {xs}", ("return {xs}[:{k}]",), ("xs",)),
    FunctionKind("after", "returns {xs} after the first {k}", ("return {xs}[{k}:]",), ("xs",)),
    FunctionKind("scaled", "returns all {xs} times {k}", ("return [x * {k} for x in {xs}]",), ("xs",)),
    FunctionKind("above", "returns the {xs} above {k}", ("return [x for x in {xs} if x > {k}]",), ("xs",)),
    FunctionKind("default", "returns {k} for no {xs} and else the first",
                 ("if not {xs}:", "    return {k}", "return {xs}[0]"), ("xs",), 2),
    FunctionKind("sum", "returns the sum of {xs} and {k}",
                 ("result = {k}", "for x in {xs}:", "    result += x", "return result"), ("xs",)),
)  # fmt: skip

OPERATOR_SWAPS: Final = (
    (" + ", " - "), (" - ", " + "), (" * ", " + "), (" < ", " > "), (" > ", " < "), ("max(", "min("), ("min(", "max("),
    ("+= ", "-= "), ("not ", ""),
)  # fmt: skip
"""Pairs of correct code and the wrong code that replaces it in a bug."""


@dataclass(frozen=True)
class Function:
    """A function of some kind, with specific names and a specific constant."""

    kind: FunctionKind
    name: str
    parameter_names: dict[str, str]
    constant: int

    def fill(self, template: str) -> str:
        """Fill a template of the kind with this function's names and constant."""
        return template.format(**self.parameter_names, k=self.constant)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the correct body."""
        return tuple(self.fill(line) for line in self.kind.body)

    @property
    def signature(self) -> str:
        """The function's signature, `name(parameters)`."""
        return f"{self.name}({', '.join(self.parameter_names[parameter] for parameter in self.kind.parameters)})"

    @property
    def description(self) -> str:
        """Description of the function in words."""
        return self.fill(self.kind.description)

    def code(self, body: Sequence[str] | None = None) -> str:
        """Return the function's source, with the correct body unless `body` is passed."""
        lines = self.lines if body is None else body
        return "\n".join([f"def {self.signature}:", *(f"    {line}" for line in lines)]) + "\n"


def is_held_out(function: Function) -> bool:
    """Return whether tasks about this function are reserved for evaluation."""
    return zlib.crc32(function.code().encode()) % HELD_OUT_DIVISOR == 0


def generate_tasks(
    seed: int | str, count: int, *, evaluation: bool = False, kinds: Sequence[str] = (), with_neighbour: bool = False
) -> list[Instance]:
    """Return `count` different tasks, for evaluation or for training. The same arguments give the same tasks. `kinds`
    limits the kinds of function (all if empty). `with_neighbour` adds a second, correct function to the module. Raises
    ValueError for an unknown kind, and if there are fewer than `count` different tasks."""
    rng = random.Random(f"tasks {seed} {evaluation}")
    endless_tasks = draw_tasks(rng, evaluation=evaluation, kinds=kinds, with_neighbour=with_neighbour)
    instances: dict[str, Instance] = {}
    for instance in islice(endless_tasks, MAX_DRAWS * count):
        instances.setdefault(instance.instance_id, instance)
        if len(instances) == count:
            break
    if len(instances) < count:
        raise ValueError(f"there are only {len(instances)} different tasks, not {count}; ask for fewer, or add kinds")
    return list(instances.values())


def check_function_kinds(names: Sequence[str]) -> Sequence[str]:
    """Return `names` unchanged. Raises ValueError if one of them is not a kind of function."""
    known_names = [kind.name for kind in FUNCTION_KINDS]
    for name in names:
        if name not in known_names:
            raise ValueError(f"unknown kind of function {name!r}; choose from {', '.join(known_names)}")
    return names


def draw_tasks(
    rng: random.Random, *, evaluation: bool = False, kinds: Sequence[str] = (), with_neighbour: bool = False
) -> Iterator[Instance]:
    """Yield tasks forever, for evaluation or for training. Raises ValueError for an unknown kind."""
    kinds_by_name = {kind.name: kind for kind in FUNCTION_KINDS}
    allowed = [kinds_by_name[name] for name in check_function_kinds(kinds)] or list(FUNCTION_KINDS)
    while True:
        function = _draw_function(rng, allowed, "")
        if is_held_out(function) is evaluation and (bug := _draw_bug(function, rng)) is not None:
            # The neighbour is drawn even if it is not used, so that later draws stay the same.
            neighbour = _draw_function(rng, list(FUNCTION_KINDS), function.name)
            yield _build_instance(function, [neighbour] if with_neighbour else [], bug, rng)


def _draw_function(rng: random.Random, kinds: Sequence[FunctionKind], used_name: str) -> Function:
    """Draw a function with any name except `used_name`."""
    a, b = rng.sample(NUMBER_NAMES, 2)
    name = rng.choice([candidate for candidate in FUNCTION_NAMES if candidate != used_name])
    return Function(rng.choice(kinds), name, {"a": a, "b": b, "xs": rng.choice(LIST_NAMES)}, rng.randrange(2, 9))


def buggy_bodies(function: Function) -> list[tuple[str, tuple[str, ...]]]:
    """Return the kind of each possible bug, and the function's body with this bug. Some bugs may escape the tests."""
    lines, constant = function.lines, function.constant
    bodies: list[tuple[str, tuple[str, ...]]] = []

    def replace_line(index: int, line: str, kind: str) -> None:
        bodies.append((kind, (*lines[:index], line, *lines[index + 1 :])))

    for index, line in enumerate(lines):
        for old, new in OPERATOR_SWAPS:
            if old in line:
                replace_line(index, line.replace(old, new, 1), "operator")
        for wrong_constant in (constant - 1, constant + 1):
            for match in re.finditer(rf"\b{constant}\b", line):
                replace_line(index, line[: match.start()] + str(wrong_constant) + line[match.end() :], "constant")
        if "[:" in line:
            replace_line(index, line.replace(f"[:{constant}]", f"[{constant}:]"), "slice")
        elif f"[{constant}:]" in line:
            replace_line(index, line.replace(f"[{constant}:]", f"[:{constant}]"), "slice")
        if function.kind.parameters == ("a", "b"):
            a, b = function.parameter_names["a"], function.parameter_names["b"]
            swapped_names = {a: b, b: a}
            words = re.split(r"\b", line)
            replace_line(index, "".join(swapped_names.get(word, word) for word in words), "names")
    if function.kind.guard_lines:
        bodies.append(("feature", lines[function.kind.guard_lines :]))
    bodies.append(("feature", ("pass",)))
    return bodies


Arguments = tuple[Any, ...]
"""The arguments of the call in one test."""


@dataclass(frozen=True)
class Bug:
    """A wrong body of a function, and the tests' arguments. `is_detected` says which of the tests fail."""

    kind: str
    body: tuple[str, ...]
    test_arguments: list[Arguments]
    is_detected: list[bool]


def _draw_bug(function: Function, rng: random.Random) -> Bug | None:
    """Return a bug that at least one of its tests detects, or None if no draw finds one."""
    bodies = buggy_bodies(function)
    for _ in range(MAX_DRAWS):
        kind = rng.choice(sorted({body_kind for body_kind, _ in bodies}))
        body = rng.choice([body for body_kind, body in bodies if body_kind == kind])
        test_arguments = [_draw_arguments(function, rng) for _ in range(BROKEN_FUNCTION_TEST_COUNT)]
        correct_function = _compile(function.code(), function.name)
        buggy_function = _compile(function.code(body), function.name)
        is_detected = [_outcome(correct_function, args) != _outcome(buggy_function, args) for args in test_arguments]
        if len({repr(args) for args in test_arguments}) == BROKEN_FUNCTION_TEST_COUNT and any(is_detected):
            return Bug(kind, body, test_arguments, is_detected)
    return None


def _draw_arguments(function: Function, rng: random.Random) -> Arguments:
    def number() -> int:
        return rng.randrange(0, 12)

    xs = [number() for _ in range(rng.randrange(0 if function.kind.name == "default" else 3, 6))]
    return tuple(xs if parameter == "xs" else number() for parameter in function.kind.parameters)


def _compile(code: str, name: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # safe, because the code is generated by this module
    function_object: Callable[..., Any] = namespace[name]
    return function_object


def _outcome(function: Callable[..., Any], args: Arguments) -> str:
    """Call the function, and return its result or the name of its exception."""
    try:
        return repr(function(*args))
    except (ArithmeticError, LookupError, NameError, TypeError) as error:
        return type(error).__name__


def _build_instance(broken: Function, neighbours: list[Function], bug: Bug, rng: random.Random) -> Instance:
    module = rng.choice(MODULE_NAMES)
    broken_comes_first = rng.random() < 0.5

    def module_code(code: str) -> str:
        rest = [function.code() for function in neighbours]
        return "\n\n".join([code, *rest] if broken_comes_first else [*rest, code])

    before, after = module_code(broken.code(bug.body)), module_code(broken.code())
    path, test_path = f"{module}.py", f"test_{module}.py"
    test_names = [f"{test_path}::test_{broken.name}_{number}" for number in range(1, BROKEN_FUNCTION_TEST_COUNT + 1)]
    failing = [name for name, is_failing in zip(test_names, bug.is_detected, strict=True) if is_failing]
    neighbour_tests = [(function, number) for function in neighbours for number in TEST_NUMBERS_OF_NEIGHBOUR]
    passing = [name for name in test_names if name not in failing]
    passing += [f"{test_path}::test_{function.name}_{number}" for function, number in neighbour_tests]
    test_code = "\n\n".join(
        [f"from {module} import {', '.join(function.name for function in [broken, *neighbours])}\n"]
        + [_test_code(broken, number, args) for number, args in enumerate(bug.test_arguments, 1)]
        + [_test_code(function, number, _draw_arguments(function, rng)) for function, number in neighbour_tests]
    )
    digest = zlib.crc32(f"{before}{after}{test_code}".encode())
    return Instance(
        instance_id=f"{broken.kind.name}-{bug.kind}-{digest:08x}",
        repo=REPO,
        base_commit=COMMIT,
        problem_statement=f"{path}: {broken.signature} {broken.description}",
        patch=git_patch({path: before}, {path: after}),
        test_patch=git_patch({}, {test_path: test_code}),
        FAIL_TO_PASS=tuple(failing),
        PASS_TO_PASS=tuple(passing),
        files={path: before, test_path: test_code},
        solution={path: after},
    )


def git_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the patch from `before` to `after` in git's format. Both map paths to file contents."""
    parts = []
    for path, new in sorted(after.items()):
        old = before.get(path, "").splitlines(keepends=True)
        source = f"a/{path}" if path in before else "/dev/null"
        lines = difflib.unified_diff(old, new.splitlines(keepends=True), source, f"b/{path}")
        mode = "" if path in before else "new file mode 100644\n"
        parts.append(f"diff --git a/{path} b/{path}\n{mode}{''.join(lines)}")
    return "".join(parts)


def _test_code(function: Function, number: int, args: Arguments) -> str:
    expected = _compile(function.code(), function.name)(*args)
    arguments = ", ".join(repr(argument) for argument in args)
    return f"def test_{function.name}_{number}():\n    assert {function.name}({arguments}) == {expected!r}\n"


class TrustedTests:
    """Generated tests that run in this process. Use this class only for this module's code, never for a policy's."""

    def outcomes(
        self, files: Mapping[str, str], tests: Sequence[str], framework: Framework = "functions"
    ) -> dict[str, Outcome]:
        """Return "passed" or "failed" for each test."""
        path = tests[0].partition("::")[0]
        namespace: dict[str, Any] = {}
        exec(files[path.removeprefix("test_")], namespace)
        exec(files[path].partition("\n")[2], namespace)  # the first line imports the module
        return {test: _run_test(namespace[test.partition("::")[2]]) for test in tests}


def _run_test(test: Callable[[], None]) -> Outcome:
    try:
        test()
    except (ArithmeticError, AssertionError, LookupError, NameError, TypeError):
        return "failed"
    return "passed"
