"""Reads a folder of text as sub-corpora, and splits the files of each into training and held-out text."""

from __future__ import annotations

import hashlib
import logging
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oven_core.errors import ConfigError

log = logging.getLogger("oven.learner")

MAX_SUB_CORPORA = 16
"""Maximum number of sub-corpora. If there are more, the smallest are merged as `others`."""
OTHERS, MODULES, PACKAGES = "others", "modules", "packages"
"""Names of sub-corpora that are not sub-folders. The standard library has the last two."""
SKIPPED_FOLDERS = frozenset(
    ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "distutils",
     "encodings", "ensurepip", "pydoc_data", "turtledemo")
)  # fmt: skip
"""Folders of the standard library to skip. They contain tests or tables, or some Python builds lack them."""


@dataclass(frozen=True)
class File:
    """A text file of the corpus."""

    sub_corpus: str
    path: str
    """Path relative to the corpus."""
    text: str

    @property
    def byte_count(self) -> int:
        """Size in bytes."""
        return len(self.text.encode())


@dataclass(frozen=True)
class SubCorpus:
    """The text of one sub-folder, split by file into training and held-out text."""

    name: str
    train: tuple[File, ...]
    held_out: tuple[File, ...]
    """Held-out files, or an empty tuple if the sub-corpus is a single file."""


def read(folder: Path | None, held_out: float, max_bytes: int) -> list[SubCorpus]:
    """Return the sub-corpora of `folder`, or of the standard library, largest first. `held_out` is the share of each
    sub-corpus's text that is held out. Raises ConfigError for a folder without text, and if no file can be held out
    because each sub-corpus has only one file."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    files = _read_texts(root, list(_paths_in_folder(root) if folder else _python_paths(root)), max_bytes)
    remedy = "give a folder of UTF-8 text files with --corpus"
    if not files:
        raise ConfigError(f"{root} contains no text in files of up to {max_bytes / 1e6:g} MB; {remedy}")
    by_name: dict[str, list[File]] = {}
    for file in _merge_smallest(files):
        by_name.setdefault(file.sub_corpus, []).append(file)
    sub_corpora = [_split(name, files_of_name, held_out) for name, files_of_name in by_name.items()]
    if not any(sub_corpus.held_out for sub_corpus in sub_corpora):
        raise ConfigError(
            f"{root} contains {len(files)} text file{'s' * (len(files) > 1)}, each alone in its sub-folder, so no file "
            f"can be held out: split one in two, or {remedy}"
        )
    return sorted(sub_corpora, key=lambda corpus: (-sum(file.byte_count for file in corpus.train), corpus.name))


def _paths_in_folder(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file with the name of its sub-corpus, which is the sub-folder directly below `folder`."""
    for path in _walk(folder):
        yield (path.parts[0] if len(path.parts) > 1 else folder.name), path


def _python_paths(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield Python's own sources, each with the name of its sub-corpus: single modules, or modules in packages."""
    for path in _walk(folder, SKIPPED_FOLDERS):
        if path.suffix == ".py":
            yield (MODULES if len(path.parts) == 1 else PACKAGES), path


def _walk(folder: Path, excluded: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the relative paths of all files under a folder. Hidden files and folders are skipped."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in excluded]
        yield from (Path(root, name).relative_to(folder) for name in names if not name.startswith("."))


def _path_hash(path: Path) -> str:
    """Return a hash by which files are sorted in a random order that is the same on every machine."""
    return hashlib.sha256(path.as_posix().encode()).hexdigest()


def _read_texts(folder: Path, paths: list[tuple[str, Path]], max_bytes: int) -> list[File]:
    """Read files up to a total of `max_bytes`. Duplicates are skipped, so that held-out text is never also training
    text."""
    by_text: dict[str, File] = {}
    total_bytes = 0
    for count, (sub_corpus, path) in enumerate(sorted(paths, key=lambda named_path: _path_hash(named_path[1]))):
        text = _read_text(folder / path, max_bytes)
        if not text or text in by_text:
            continue
        file = File(sub_corpus, path.as_posix(), text)
        if total_bytes + file.byte_count > max_bytes:
            log.info("%s: read %d of %d files, %.3g MB of text", folder, count, len(paths), total_bytes / 1e6)
            break
        by_text[text] = file
        total_bytes += file.byte_count
    return list(by_text.values())


def _read_text(path: Path, max_bytes: int) -> str:
    """Return a file's text, or an empty string if the file is not text or is too long."""
    try:
        text = path.read_bytes().decode() if path.stat().st_size <= max_bytes else ""
    except (OSError, UnicodeDecodeError):
        return ""
    return text if "\0" not in text and text.strip() else ""


def _merge_smallest(files: Sequence[File]) -> Iterator[File]:
    """Merge the smallest sub-corpora, so that at most MAX_SUB_CORPORA remain."""
    sizes: Counter[str] = Counter()
    for file in files:
        sizes[file.sub_corpus] += file.byte_count
    keep_count = MAX_SUB_CORPORA if len(sizes) <= MAX_SUB_CORPORA else MAX_SUB_CORPORA - 1  # one place for OTHERS
    unmerged_names = {name for name, _ in sizes.most_common(keep_count)}
    return (file if file.sub_corpus in unmerged_names else replace(file, sub_corpus=OTHERS) for file in files)


def _split(name: str, files: Sequence[File], share: float) -> SubCorpus:
    """Hold out the first files, about `share` of the text. All runs on the same folder hold out the same files."""
    target_bytes = share * sum(file.byte_count for file in files)
    held_out, held_out_bytes = [], 0
    for file in files[:-1]:
        if held_out_bytes >= target_bytes:
            break
        held_out.append(file)
        held_out_bytes += file.byte_count
    return SubCorpus(name, tuple(files[len(held_out) :]), tuple(held_out))
