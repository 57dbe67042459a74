"""Repair tasks with SWE-bench's instance fields, from a file or a generator. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from oven_core.errors import ConfigError, reason
from oven_runs.traces import jsonl

PATCHED: Final = re.compile(r"(?m)^(?:--- a/|\+\+\+ b/|rename from |rename to |diff --git a/.+ b/)([^\t\n]+)")
"""Matches the paths in a git patch."""
REPO: Final = re.compile(r"[\w.-]+/[\w.-]+")


def _listed(value: Any) -> Any:
    """Return a list of names, which SWE-bench's files store as a JSON string."""
    return json.loads(value) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Instance(BaseModel):
    """A repair task: a repository at a commit, the problem, and the tests that decide. Unlike SWE-bench, a task may
    include a small repository in `files`, with its `solution`. Without `files`, the repository is a checkout."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # the published sets have further columns

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str = ""
    test_patch: str = ""
    FAIL_TO_PASS: Names
    """Tests that fail before a correct repair and pass after it."""
    PASS_TO_PASS: Names = ()
    """Tests that pass before it and must pass after it."""
    files: dict[str, str] = {}
    """Path → text of the repository, tests included."""
    solution: dict[str, str] = {}
    """Path → text of the files that a correct repair changes, for generated tasks."""

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests that count, as `path::name`."""
        return (*self.FAIL_TO_PASS, *self.PASS_TO_PASS)

    @property
    def test_paths(self) -> frozenset[str]:
        """Test files, and the files that the test patch adds to a checkout, such as data and helpers. A repair may not
        change them."""
        brought = () if self.files else PATCHED.findall(self.test_patch)
        return frozenset(brought) | {test.partition("::")[0] for test in self.tests}


def instance_of(row: Mapping[str, Any], where: str) -> Instance:
    """Parse an instance. Raises ConfigError for an invalid row, with a message that starts with `where`."""
    try:
        instance = Instance.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {field}: {first['msg']}; a SWE-bench instance has this field") from None
    except ValueError as error:  # a string that should contain a list
        raise ConfigError(f"{where}: FAIL_TO_PASS or PASS_TO_PASS is not a list, nor JSON of one: {error}") from None
    if not instance.FAIL_TO_PASS:
        raise ConfigError(f"{where}: {instance.instance_id} has no FAIL_TO_PASS, so nothing says that it is solved")
    if not REPO.fullmatch(instance.repo):
        raise ConfigError(f"{where}: repo is {instance.repo[:100]!r}; SWE-bench writes owner/name")
    return instance


def read_instances(path: Path) -> Iterator[Instance]:
    """Read instances from a .json file with a list, or from a .jsonl file."""
    seen: dict[str, Instance] = {}
    for where, row in _rows(path):
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: {type(row).__name__} where an instance's object should be")
        made = instance_of(row, where)
        if seen.setdefault(made.instance_id, made) != made:
            raise ConfigError(f"{where}: another instance is called {made.instance_id!r}, too; give each its own id")
        yield made
    if not seen:
        raise ConfigError(f"{path} has no instance in it")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix != ".json":
        for number, row in jsonl.rows(path):
            if isinstance(row, jsonl.BadLine):
                raise ConfigError(jsonl.refusal(path, row))
            yield f"{path}:{number}", row
        return
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON, or was cut: {error}") from None
    for position, row in enumerate(content if isinstance(content, list) else [content]):
        yield f"{path}[{position}]", row
