"""Names that were removed are answered with the tag that still has them."""

from __future__ import annotations

from oven_core.errors import UnknownNameError
from oven_core.removed_names import COMMIT, TAG, removal_message


def test_a_removed_name_is_answered_with_the_tag_and_no_near_name() -> None:
    error = UnknownNameError("command of kg", "learn", ["lint", "info"])
    assert str(error) == f"`kg learn` was removed; check out the tag {TAG} (commit {COMMIT[:12]}) to use it"
    assert removal_message("command of kg", "lint") is None and removal_message("no such kind", "learn") is None
