"""Reads repair tasks from a file. They have the fields of SWE-bench's instances. This module does not import torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from oven_core.errors import ConfigError, reason
from oven_runs.traces import jsonl

PATCH_PATHS: Final = re.compile(r"(?m)^(?:--- a/|\+\+\+ b/|rename from |rename to |diff --git a/.+ b/)([^\t\n]+)")
"""Pattern of the paths in a git patch."""
REPO_PATTERN: Final = re.compile(r"[\w.-]+/[\w.-]+")


def _as_list(value: Any) -> Any:
    """Parse a list of names if it is a JSON string, as in SWE-bench's files."""
    return json.loads(value) if isinstance(value, str) else value


TestNames = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Instance(BaseModel):
    """A repair task, with a repository at a commit, a problem, and tests that decide whether a repair is correct.
    Unlike in SWE-bench, an instance may include the files of a small repository, and the solution. If `files` is empty,
    the files are read from a clone of `repo`."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # the published sets have more columns

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str = ""
    test_patch: str = ""
    FAIL_TO_PASS: TestNames
    """Tests that fail before a correct repair and pass after it."""
    PASS_TO_PASS: TestNames = ()
    """Tests that pass before the repair and must pass after it."""
    files: dict[str, str] = {}
    """Path → text of a file in the repository, including tests."""
    solution: dict[str, str] = {}
    """Path → text of each file that a correct repair changes, after the repair. Only generated tasks have it."""

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that decide whether the task is solved, as `path::name`."""
        return (*self.FAIL_TO_PASS, *self.PASS_TO_PASS)

    @property
    def test_paths(self) -> frozenset[str]:
        """Paths that a repair may not change: test files, and other files in a clone's test patch, such as data and
        helpers."""
        patched_paths = () if self.files else PATCH_PATHS.findall(self.test_patch)
        return frozenset(patched_paths) | {test.partition("::")[0] for test in self.tests}


def parse_instance(row: Mapping[str, Any], source: str) -> Instance:
    """Parse an instance. Raises ConfigError for an invalid row, with a message that starts with `source`."""
    try:
        instance = Instance.model_validate(row)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"{source}: {field}: {problem['msg']}; every SWE-bench instance needs this field") from None
    except ValueError as error:  # a string that should contain a list
        raise ConfigError(
            f"{source}: FAIL_TO_PASS and PASS_TO_PASS must be lists or JSON strings of lists: {error}"
        ) from None
    if not instance.FAIL_TO_PASS:
        raise ConfigError(f"{source}: {instance.instance_id} has no FAIL_TO_PASS tests, which show that it is solved")
    if not REPO_PATTERN.fullmatch(instance.repo):
        raise ConfigError(f"{source}: repo {instance.repo[:100]!r} is invalid; expected owner/name, as in SWE-bench")
    return instance


def read_instances(path: Path) -> Iterator[Instance]:
    """Yield the instances in a .json file with a list, or in a .jsonl file. Raises ConfigError for an invalid file."""
    instances: dict[str, Instance] = {}
    for source, row in _read_rows(path):
        if not isinstance(row, dict):
            raise ConfigError(f"{source}: expected a JSON object, got a {type(row).__name__}")
        instance = parse_instance(row, source)
        if instances.setdefault(instance.instance_id, instance) != instance:
            raise ConfigError(f"{source}: another instance also has the id {instance.instance_id!r}; use unique ids")
        yield instance
    if not instances:
        raise ConfigError(f"{path} contains no instances")


def _read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row with its place in the file, for error messages."""
    if path.suffix != ".json":
        for number, row in jsonl.read_rows(path):
            if isinstance(row, jsonl.BadLine):
                raise ConfigError(jsonl.bad_line_error(path, row))
            yield f"{path}:{number}", row
        return
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON, or is incomplete: {error}") from None
    for position, row in enumerate(content if isinstance(content, list) else [content]):
        yield f"{path}[{position}]", row
