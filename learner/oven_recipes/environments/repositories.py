"""The files of an instance: its own, or those of a checkout at its commit."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError, reason
from oven_recipes.environments.instance import Instance
from oven_recipes.environments.patches import apply_patch

FILE_BYTES: Final = 2_000_000
"""Largest file of a checkout that counts as source."""
REGULAR: Final = (b"100644", b"100755")
"""Modes of regular files in git's trees, not of links or other repositories."""


@dataclass(frozen=True)
class Repositories:
    """`folder` has checkouts as `owner__name`, SWE-bench's form. None: there are none."""

    folder: Path | None = None

    def checkout(self, instance: Instance) -> Path | None:
        """Return the place of the instance's repository; None if the instance has its files."""
        if instance.files:
            return None
        return (self.folder or Path("repositories")) / instance.repo.replace("/", "__")

    def check(self, instance: Instance) -> None:
        """Raises ConfigError for an instance without a repository, or whose repository lacks its commit."""
        path = self.checkout(instance)
        if path is None:
            return
        if find_spec("pytest") is None:
            raise ConfigError(f"the tests of {instance.repo} run by pytest, which is not installed: pip install pytest")
        if self.folder is None or not (path / ".git").exists():
            raise ConfigError(
                f"{instance.instance_id} is about {instance.repo}, whose repository is not at {path}: clone it there "
                f"(git clone https://github.com/{instance.repo} {path}), and name the folder with --repositories"
            )
        try:
            _git(path, "cat-file", "-e", f"{instance.base_commit}^{{commit}}")
        except ConfigError:
            raise ConfigError(
                f"{path} has no commit {instance.base_commit[:40]}, which {instance.instance_id} starts from: fetch it"
            ) from None

    def files(self, instance: Instance) -> Mapping[str, str]:
        """Return path → text, with the instance's tests. Raises ConfigError."""
        if instance.files:
            return instance.files
        self.check(instance)
        path = self.checkout(instance)
        assert path is not None
        return apply_patch(_texts(path, instance.base_commit), instance.test_patch)


def _texts(path: Path, commit: str) -> dict[str, str]:
    """Return a commit's regular text files as they were committed. `git archive` would omit those that the repository's
    attributes exclude from releases, often its tests, and rewrite others. Raises ConfigError."""
    blobs: dict[str, bytes] = {}
    for row in _git(path, "ls-tree", "-r", "-z", "-l", commit).split(b"\0")[:-1]:
        described, _, written = row.partition(b"\t")
        name, (mode, _, blob, size) = os.fsdecode(written), described.split()
        if mode not in REGULAR:
            continue
        if not size.isdigit():
            raise ConfigError(
                f"{path} lacks {name[:200]!r} of commit {commit[:40]}: it was not cloned whole; clone it anew"
            )
        if int(size) <= FILE_BYTES:
            blobs[name] = blob
    packed = io.BytesIO(_git(path, "cat-file", "--batch", stdin=b"".join(blob + b"\n" for blob in blobs.values())))
    files = {}
    for name in blobs:
        length = int(packed.readline().split()[2])
        content = packed.read(length + 1)[:-1]
        with contextlib.suppress(UnicodeDecodeError):
            files[name] = content.decode()
    return files


def _git(path: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(path), *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git cannot be run: {reason(error)}") from None
    if done.returncode:
        raise ConfigError(f"git {arguments[0]} fails in {path}: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout
