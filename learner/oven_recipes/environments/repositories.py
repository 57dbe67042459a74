"""Reads the files of an instance, from the instance itself or from a local clone at the instance's commit."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError, reason
from oven_recipes.environments.repair_instance import Instance

MAX_FILE_BYTES: Final = 2_000_000
"""Maximum size of a source file in a clone. Larger files are skipped."""
REGULAR_FILE_MODES: Final = (b"100644", b"100755")
"""Git modes of regular files, as opposed to links and submodules."""


@dataclass(frozen=True)
class Repositories:
    """A folder of local clones, each called `owner__name` as in SWE-bench."""

    folder: Path | None = None

    def clone_path(self, instance: Instance) -> Path | None:
        """Return the path of the instance's clone, or None if the instance includes its files."""
        if instance.files:
            return None
        return (self.folder or Path("repositories")) / instance.repo.replace("/", "__")

    def check(self, instance: Instance) -> None:
        """Raise ConfigError if the clone, its commit or pytest is missing."""
        path = self.clone_path(instance)
        if path is None:
            return
        if find_spec("pytest") is None:
            raise ConfigError(f"the tests of {instance.repo} need pytest, which is not installed; `pip install pytest`")
        if self.folder is None or not (path / ".git").exists():
            raise ConfigError(
                f"{instance.instance_id} needs {instance.repo}, but there is no clone at {path}; clone it "
                f"(git clone https://github.com/{instance.repo} {path}), and pass the folder with --repositories"
            )
        try:
            _git(path, "cat-file", "-e", f"{instance.base_commit}^{{commit}}")
        except ConfigError:
            raise ConfigError(
                f"{path} does not have the commit {instance.base_commit[:40]} of {instance.instance_id}; fetch it"
            ) from None

    def read_files(self, instance: Instance) -> Mapping[str, str]:
        """Return the instance's files as path → text, including its tests. Raises ConfigError like `check`, and if git
        fails."""
        if instance.files:
            return instance.files
        self.check(instance)
        path = self.clone_path(instance)
        assert path is not None
        with tempfile.TemporaryDirectory(prefix="oven-index-") as folder:  # git writes here instead of into the clone
            objects = Path(path, _git(path, "rev-parse", "--git-path", "objects").decode().strip()).absolute()
            git = partial(_git, path, GIT_INDEX_FILE=f"{folder}/index", GIT_OBJECT_DIRECTORY=folder,
                          GIT_ALTERNATE_OBJECT_DIRECTORIES=str(objects))  # fmt: skip
            git("read-tree", instance.base_commit)
            if instance.test_patch.strip():
                git("apply", "--cached", "--whitespace=nowarn", stdin=instance.test_patch.encode())
            tree = git("write-tree", "--missing-ok").decode().strip()
            return _read_texts(git, f"commit {instance.base_commit[:40]} in {path}", tree)


def _read_texts(git: Callable[..., bytes], description: str, tree: str) -> dict[str, str]:
    """Return the regular text files of a git tree as path → text. `description` names the tree in errors. Raises
    ConfigError for a partial clone. The files do not come from `git archive`, because it applies the repository's
    attributes, which change some files and often exclude the tests."""
    blobs: dict[str, bytes] = {}  # path → the blob's object name
    for row in git("ls-tree", "-r", "-z", "-l", tree).split(b"\0")[:-1]:  # every row ends with a zero byte
        attributes, _, raw_name = row.partition(b"\t")
        mode, _, blob, size = attributes.split()
        name = os.fsdecode(raw_name)
        if mode not in REGULAR_FILE_MODES:
            continue
        if not size.isdigit():
            raise ConfigError(f"{description} lacks {name[:200]!r}; the clone is partial, so make a full clone")
        if int(size) <= MAX_FILE_BYTES:
            blobs[name] = blob
    contents = io.BytesIO(git("cat-file", "--batch", stdin=b"".join(blob + b"\n" for blob in blobs.values())))
    files = {}
    for name in blobs:
        length = int(contents.readline().split()[2])  # the header is "name type length"
        content = contents.read(length + 1)[:-1]  # without the newline that ends each blob
        with contextlib.suppress(UnicodeDecodeError):
            files[name] = content.decode()
    return files


def _git(path: Path, *arguments: str, stdin: bytes = b"", **environment: str) -> bytes:
    command = ["git", "-C", str(path), *arguments]
    try:
        process = subprocess.run(
            command, input=stdin, capture_output=True, check=False, timeout=120, env=os.environ | environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git could not be run: {reason(error)}") from None
    if process.returncode:
        message = process.stderr.decode(errors="replace").strip()[:200]
        raise ConfigError(f"git {arguments[0]} failed in {path}: {message}")
    return process.stdout
