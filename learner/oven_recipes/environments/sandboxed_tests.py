"""Runs tests of a repair task in the sandbox, with one process per run."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from oven_core.errors import ConfigError, ProcessError, reason
from oven_llm.sandbox.confined_sandbox import open_sandbox
from oven_llm.sandbox.limits import MB, Limits
from oven_llm.sandbox.profiles import Profile

Outcome: TypeAlias = Literal["passed", "failed", "missing", "timeout", "died"]
"""Outcome of a test. "failed" means that the test or its module raised an error, and "missing" that the test does not
exist. If the sandbox's process does not finish, all its tests have the outcome "timeout" or "died"."""
REPORTED_OUTCOMES: Final = ("passed", "failed", "missing")
"""Outcomes that the code in the sandbox reports."""

Framework: TypeAlias = Literal["functions", "pytest"]
"""How tests are found and called: as plain functions by name, or with pytest by its ids."""
LIMITS: Final[Mapping[Framework, Limits]] = {
    "functions": Limits(block_s=10, memory_bytes=1024 * MB, output_bytes=20_000, file_bytes=10 * MB),
    "pytest": Limits(block_s=300, memory_bytes=4096 * MB, output_bytes=20_000),
}
"""Limits of one run. Tests of small functions take milliseconds, but tests of a repository take minutes."""
CACHE_SIZE: Final = 20_000
"""Maximum number of cached outcomes, of about 200 bytes each. Rollouts in a group often make the same edits."""

# The code that runs in the sandbox. There, FINAL is the function with which code returns its answer.
FUNCTIONS_CODE: Final = """
def _run(names_by_path, root, FINAL):
    import importlib.util, sys
    sys.path.insert(0, root)
    outcomes = {}
    for path, names in names_by_path.items():
        try:
            spec = importlib.util.spec_from_file_location(path[:-3].replace("/", "."), root + "/" + path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except Exception:
            outcomes.update({path + "::" + name: "failed" for name in names})
            continue
        for name in names:
            test = getattr(module, name, None)
            outcome = "missing"
            if callable(test):
                try:
                    test()
                    outcome = "passed"
                except Exception:
                    outcome = "failed"
            outcomes[path + "::" + name] = outcome
    FINAL(outcomes)
"""
PYTEST_CODE: Final = """
def _run(names_by_path, root, FINAL):
    import os, sys
    import pytest
    ids = {path + "::" + name for path, names in names_by_path.items() for name in names}
    outcomes, broken_files = {}, set()
    class Collector:
        def pytest_collectreport(self, report):
            if report.failed:
                broken_files.add(report.nodeid)
        def pytest_collection_modifyitems(self, items):
            items[:] = [item for item in items if item.nodeid in ids]
        def pytest_runtest_logreport(self, report):
            if report.outcome == "failed":
                outcomes[report.nodeid] = "failed"
            elif report.when == "call":
                outcomes.setdefault(report.nodeid, report.outcome)
    os.chdir(root)
    sys.path[:0] = [root, root + "/src"]
    files = [path for path in names_by_path if os.path.exists(path)]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", root, "-o", "addopts=", "--continue-on-collection-errors"]
    if files:
        pytest.main([*options, *files], plugins=[Collector()])
    for test_id in ids:
        outcomes.setdefault(test_id, "failed" if test_id.partition("::")[0] in broken_files else "missing")
    FINAL({test_id: outcomes[test_id] for test_id in ids})
"""
"""Code that passes whole files to pytest and then selects tests, because pytest runs no test if one id is missing."""
CALL_CODE: Final = """
_final = FINAL
del FINAL
_run(names_by_path, root, globals().pop("_final"))
"""
"""Code that starts the tests. It removes FINAL from the namespace before any tested module is imported."""
RUNNERS: Final[Mapping[Framework, str]] = {"functions": FUNCTIONS_CODE + CALL_CODE, "pytest": PYTEST_CODE + CALL_CODE}


class SandboxedTests:
    """Tests that run in the sandbox, with a cache of outcomes by tests and files. Cached outcomes may be wrong for
    tests that depend on chance or time. For these, disable the cache with `cache_size=0`."""

    def __init__(self, limits: Mapping[Framework, Limits] = LIMITS, *, cache_size: int = CACHE_SIZE) -> None:
        self._limits, self._cache_size = limits, cache_size
        self._cache: OrderedDict[str, dict[str, Outcome]] = OrderedDict()
        self._lock = threading.Lock()  # a server has one thread per connection
        self.runs: Counter[str] = Counter()
        """Number of runs for each way to end in the sandbox. Cache hits count as `remembered`."""

    def outcomes(
        self, files: Mapping[str, str], tests: Sequence[str], framework: Framework = "functions"
    ) -> dict[str, Outcome]:
        """Return the outcome of each test, even if the tested code hangs or kills its process. Raises ConfigError if a
        file cannot be written or this machine has no sandbox, and ProcessError if the sandbox cannot import pytest."""
        key = hashlib.sha256(json.dumps([framework, sorted(files.items()), list(tests)]).encode()).hexdigest()
        with self._lock:
            cached_outcomes = self._cache.get(key)
            if cached_outcomes is not None:
                self.runs["remembered"] += 1
                self._cache.move_to_end(key)
                return dict(cached_outcomes)
        outcomes, ending = self._run(files, tests, framework)
        with self._lock:
            self.runs[ending] += 1
            if self._cache_size:
                self._cache[key] = outcomes
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return dict(outcomes)

    def _run(
        self, files: Mapping[str, str], tests: Sequence[str], framework: Framework
    ) -> tuple[dict[str, Outcome], str]:
        names_by_path: dict[str, list[str]] = {}
        for test in tests:
            path, _, name = test.partition("::")
            names_by_path.setdefault(path, []).append(name)
        with tempfile.TemporaryDirectory(prefix="oven-tests-") as folder:
            root, scratch = Path(folder, "repository"), Path(folder, "scratch")
            scratch.mkdir()
            root.mkdir()
            write_files(root, files)
            profile = Profile("tests", modules=(), read=root, write=scratch)
            with open_sandbox(profile, limits=self._limits[framework]) as sandbox:
                if framework == "pytest" and (loaded := sandbox.run("import pytest")).ending != "completed":
                    raise ProcessError(
                        f"pytest cannot be imported in the sandbox ({loaded.error}); install it into this Python's "
                        "site-packages, not through a symbolic link"
                    )
                sandbox.assign("names_by_path", names_by_path)
                sandbox.assign("root", str(root.resolve()))
                block = sandbox.run(RUNNERS[framework])
        answer: Any = block.answer.value if block.answer is not None else None
        if block.ending == "completed" and isinstance(answer, dict):
            return {test: _outcome(answer.get(test)) for test in tests}, block.ending
        outcome: Outcome = "timeout" if block.ending == "timeout" else "died"
        return dict.fromkeys(tests, outcome), block.ending


def _outcome(value: object) -> Outcome:
    return value if value in REPORTED_OUTCOMES else "died"


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write the files under `root`. Raises ConfigError for a path outside it, and if writing fails."""
    for path, text in files.items():
        target = (root / path).resolve()
        if not target.is_relative_to(root.resolve()) or target == root.resolve():
            raise ConfigError(f"the instance's file {path[:200]!r} is not inside its repository")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {reason(error)}") from None
