"""Files written whole: what a failed or concurrent write leaves, and who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_core.files import atomic_file, write_atomic


def interrupted(target: Path) -> None:
    with atomic_file(target) as out:
        out.write(b"half")
        raise KeyboardInterrupt


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomic(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(target, "new \udc80")
    with pytest.raises(KeyboardInterrupt):
        interrupted(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_reader_sees_the_new_content_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomic(target, b"old")
    with atomic_file(target) as out:
        out.write(b"ne")
        out.flush()
        assert target.read_bytes() == b"old"
        out.write(b"w")
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_private_file_is_readable_by_its_owner_only(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "key.nk"
    target.touch()
    target.chmod(mode)
    write_atomic(target, b"secret", private=True)
    assert target.stat().st_mode & 0o777 == 0o600
