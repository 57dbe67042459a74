"""A generator of repair tasks. A task is a module with a small function that has a bug or lacks a feature. The
statement describes the function in words, so that text and code are enough for a repair. A hash of the correct code
decides the split, so that all processes and seeds agree on it."""

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
MAX_TRIES: Final = 200
"""Maximum number of draws for a bug or for each new task. Each draw succeeds with a probability above 0.1."""

FUNCTIONS: Final = ("total", "score", "charge", "level", "limit", "offset", "rate", "weight", "share", "width")
NUMBERS: Final = ("price", "count", "size", "depth", "speed", "mass")
LISTS: Final = ("items", "parts", "rows", "marks")
MODULES: Final = ("shop", "units", "stock", "rules")
CASE_COUNT: Final = 4
"""Number of tests for the broken function. A neighbour has two tests."""


@dataclass(frozen=True)
class Kind:
    """A kind of function. In its templates, a, b and xs stand for the parameters' names, and k for a constant."""

    name: str
    description: str
    body: tuple[str, ...]
    parameters: tuple[str, ...]
    guard: int = 0
    """Number of lines at the top of the body that form a separate feature and can be deleted."""


FUNCTION_KINDS: Final = (
    Kind("linear", "returns {a} times {k} plus {b}", ("return {a} * {k} + {b}",), ("a", "b")),
    Kind("difference", "returns {a} minus {b} times {k}", ("return {a} - {b} * {k}",), ("a", "b")),
    Kind("at_least", "returns {a} but at least {k}", ("if {a} < {k}:", "    return {k}", "return {a}"), ("a",), 2),
    Kind("at_most", "returns {a} but at most {k}", ("if {a} > {k}:", "    return {k}", "return {a}"), ("a",), 2),
    Kind("largest", "returns the largest of {xs} plus {k}", ("return max({xs}) + {k}",), ("xs",)),
    Kind("smallest", "returns the smallest of {xs} minus {k}", ("return min({xs}) - {k}",), ("xs",)),
    Kind("first", "returns the first {k} of {xs}", ("return {xs}[:{k}]",), ("xs",)),
    Kind("after", "returns {xs} after the first {k}", ("return {xs}[{k}:]",), ("xs",)),
    Kind("scaled", "returns all {xs} times {k}", ("return [x * {k} for x in {xs}]",), ("xs",)),
    Kind("above", "returns the {xs} above {k}", ("return [x for x in {xs} if x > {k}]",), ("xs",)),
    Kind("default", "returns {k} for no {xs} and else the first", ("if not {xs}:", "    return {k}", "return {xs}[0]"),
          ("xs",), 2),
    Kind("sum", "returns the sum of {xs} and {k}", ("result = {k}", "for x in {xs}:", "    result += x",
          "return result"), ("xs",)),
)  # fmt: skip

SWAPS: Final = (
    (" + ", " - "), (" - ", " + "), (" * ", " + "), (" < ", " > "), (" > ", " < "), ("max(", "min("), ("min(", "max("),
    ("+= ", "-= "), ("not ", ""),
)  # fmt: skip
"""Pairs of correct code and its replacement in a bug."""


@dataclass(frozen=True)
class Function:
    """A function, which is a kind of function with specific names and a constant."""

    kind: Kind
    name: str
    names: dict[str, str]
    k: int

    def fill(self, template: str) -> str:
        """Return a template of the kind, filled with this function's names."""
        return template.format(**self.names, k=self.k)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the correct body."""
        return tuple(self.fill(line) for line in self.kind.body)

    @property
    def heading(self) -> str:
        """The function's heading, `name(parameters)`."""
        return f"{self.name}({', '.join(self.names[parameter] for parameter in self.kind.parameters)})"

    @property
    def description(self) -> str:
        """Description of the function in words."""
        return self.fill(self.kind.description)

    def code(self, body: Sequence[str] | None = None) -> str:
        """Return the function's source, with `body` instead of the correct one if it is passed."""
        lines = self.lines if body is None else body
        return "\n".join([f"def {self.heading}:", *(f"    {line}" for line in lines)]) + "\n"


def is_held_out(function: Function) -> bool:
    """Return whether tasks about this function belong to the evaluation side."""
    return zlib.crc32(function.code().encode()) % HELD_OUT_DIVISOR == 0


def tasks(
    seed: int | str, count: int, *, evaluation: bool = False, kinds: Sequence[str] = (), neighbour: bool = False
) -> list[Instance]:
    """Return `count` different tasks from one side of the split. The same arguments give the same tasks. Only
    functions of `kinds` are drawn (all if empty). `neighbour` adds a second, correct function to the module.
    Raises ValueError for an unknown kind, and if there are fewer tasks."""
    rng = random.Random(f"tasks {seed} {evaluation}")
    task_source = draw_tasks(rng, evaluation=evaluation, kinds=kinds, neighbour=neighbour)
    instances: dict[str, Instance] = {}
    for instance in islice(task_source, MAX_TRIES * count):
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
    rng: random.Random, *, evaluation: bool = False, kinds: Sequence[str] = (), neighbour: bool = False
) -> Iterator[Instance]:
    """Yield tasks from one side of the split forever. Raises ValueError for an unknown kind."""
    kinds_by_name = {kind.name: kind for kind in FUNCTION_KINDS}
    allowed = [kinds_by_name[name] for name in check_function_kinds(kinds)] or list(FUNCTION_KINDS)
    while True:
        broken = _draw_function(rng, allowed, "")
        if is_held_out(broken) is evaluation and (bug := _draw_bug(broken, rng)) is not None:
            # Always drawn, so that `neighbour` does not change later draws.
            second = _draw_function(rng, list(FUNCTION_KINDS), broken.name)
            yield _instance(broken, [second] if neighbour else [], bug, rng)


def _draw_function(rng: random.Random, kinds: Sequence[Kind], used_name: str) -> Function:
    a, b = rng.sample(NUMBERS, 2)
    name = rng.choice([candidate for candidate in FUNCTIONS if candidate != used_name])
    return Function(rng.choice(kinds), name, {"a": a, "b": b, "xs": rng.choice(LISTS)}, rng.randrange(2, 9))


def bugs(function: Function) -> list[tuple[str, tuple[str, ...]]]:
    """Return each possible bug as (kind, body), including bugs that no test detects."""
    lines = function.lines
    edits: list[tuple[str, tuple[str, ...]]] = []

    def add_edit(index: int, line: str, kind: str) -> None:
        edits.append((kind, (*lines[:index], line, *lines[index + 1 :])))

    for index, line in enumerate(lines):
        for old, new in SWAPS:
            if old in line:
                add_edit(index, line.replace(old, new, 1), "operator")
        for neighbour in (function.k - 1, function.k + 1):
            for match in re.finditer(rf"\b{function.k}\b", line):
                add_edit(index, line[: match.start()] + str(neighbour) + line[match.end() :], "constant")
        if "[:" in line:
            add_edit(index, line.replace(f"[:{function.k}]", f"[{function.k}:]"), "slice")
        elif f"[{function.k}:]" in line:
            add_edit(index, line.replace(f"[{function.k}:]", f"[:{function.k}]"), "slice")
        if function.kind.parameters == ("a", "b"):
            a, b = function.names["a"], function.names["b"]
            add_edit(index, "".join({a: b, b: a}.get(word, word) for word in re.split(r"\b", line)), "names")
    if function.kind.guard:
        edits.append(("feature", lines[function.kind.guard :]))
    edits.append(("feature", ("pass",)))
    return edits


Case = tuple[Any, ...]
"""The arguments of one test's call."""


def _draw_bug(function: Function, rng: random.Random) -> tuple[str, tuple[str, ...], list[Case]] | None:
    """Return (kind, body, cases) of a bug that at least one of the cases detects, or None if no draw finds one."""
    options = bugs(function)
    for _ in range(MAX_TRIES):
        kind = rng.choice(sorted({kind for kind, _ in options}))
        body = rng.choice([body for option_kind, body in options if option_kind == kind])
        cases = [_draw_case(function, rng) for _ in range(CASE_COUNT)]
        correct_function = _compile(function.code(), function.name)
        buggy_function = _compile(function.code(body), function.name)
        if len({repr(case) for case in cases}) == CASE_COUNT and any(
            _result_of(correct_function, case) != _result_of(buggy_function, case) for case in cases
        ):
            return kind, body, cases
    return None


def _draw_case(function: Function, rng: random.Random) -> Case:
    def number() -> int:
        return rng.randrange(0, 12)

    xs = [number() for _ in range(rng.randrange(0 if function.kind.name == "default" else 3, 6))]
    return tuple(xs if parameter == "xs" else number() for parameter in function.kind.parameters)


def _compile(code: str, name: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # built only from the kinds above
    function_object: Callable[..., Any] = namespace[name]
    return function_object


def _result_of(function: Callable[..., Any], case: Case) -> str:
    try:
        return repr(function(*case))
    except (ArithmeticError, LookupError, NameError, TypeError) as error:
        return type(error).__name__


def _instance(
    broken: Function, neighbours: list[Function], bug: tuple[str, tuple[str, ...], list[Case]], rng: random.Random
) -> Instance:
    kind, body, cases = bug
    module = rng.choice(MODULES)
    is_first = rng.random() < 0.5

    def module_code(code: str) -> str:
        rest = [function.code() for function in neighbours]
        return "\n\n".join([code, *rest] if is_first else [*rest, code])

    before, after = module_code(broken.code(body)), module_code(broken.code())
    path, tests = f"{module}.py", f"test_{module}.py"
    correct_function = _compile(broken.code(), broken.name)
    buggy_function = _compile(broken.code(body), broken.name)
    names = [f"{tests}::test_{broken.name}_{number}" for number in range(1, CASE_COUNT + 1)]
    failing = [
        name
        for name, case in zip(names, cases, strict=True)
        if _result_of(correct_function, case) != _result_of(buggy_function, case)
    ]
    protected_tests = [f"{tests}::test_{function.name}_{number}" for function in neighbours for number in (1, 2)]
    test_code = "\n\n".join(
        [f"from {module} import {', '.join(function.name for function in [broken, *neighbours])}\n"]
        + [_test_code(broken, number, case) for number, case in enumerate(cases, 1)]
        + [_test_code(function, number, _draw_case(function, rng)) for function in neighbours for number in (1, 2)]
    )
    digest = zlib.crc32(f"{before}{after}{test_code}".encode())
    return Instance(
        instance_id=f"{broken.kind.name}-{kind}-{digest:08x}",
        repo=REPO,
        base_commit=COMMIT,
        problem_statement=f"{path}: {broken.heading} {broken.description}",
        patch=make_patch({path: before}, {path: after}),
        test_patch=make_patch({}, {tests: test_code}),
        FAIL_TO_PASS=tuple(failing),
        PASS_TO_PASS=tuple([name for name in names if name not in failing] + protected_tests),
        files={path: before, tests: test_code},
        solution={path: after},
    )


def make_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the patch from `before` to `after` in git's format. Both map paths to file contents."""
    parts = []
    for path, new in sorted(after.items()):
        old = before.get(path, "").splitlines(keepends=True)
        source = f"a/{path}" if path in before else "/dev/null"
        lines = difflib.unified_diff(old, new.splitlines(keepends=True), source, f"b/{path}")
        mode = "" if path in before else "new file mode 100644\n"
        parts.append(f"diff --git a/{path} b/{path}\n{mode}{''.join(lines)}")
    return "".join(parts)


def _test_code(function: Function, number: int, case: Case) -> str:
    expected = _compile(function.code(), function.name)(*case)
    arguments = ", ".join(repr(argument) for argument in case)
    return f"def test_{function.name}_{number}():\n    assert {function.name}({arguments}) == {expected!r}\n"


class TrustedTests:
    """A runner of generated tests in this process. Use it only for code from this module, never for a policy's code."""

    def outcomes(
        self, files: Mapping[str, str], tests: Sequence[str], framework: Framework = "functions"
    ) -> dict[str, Outcome]:
        """Return "passed" or "failed" for each test."""
        path = tests[0].partition("::")[0]
        namespace: dict[str, Any] = {}
        exec(files[path.removeprefix("test_")], namespace)
        exec(files[path].partition("\n")[2], namespace)  # without the import in its first line
        return {test: _run_test(namespace[test.partition("::")[2]]) for test in tests}


def _run_test(test: Callable[[], None]) -> Outcome:
    try:
        test()
    except (ArithmeticError, AssertionError, LookupError, NameError, TypeError):
        return "failed"
    return "passed"
