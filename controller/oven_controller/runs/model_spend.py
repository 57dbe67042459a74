"""What a run's judges have spent: one SQLite file in the run's folder, into which each member's process books.

A call's greatest cost is held before the call is made, and what it came to is booked afterwards, each in one
transaction over all members; so the caps hold for processes that know nothing of each other, over restarts of a member
or the stack, and over `--resume`. What a process held when it died counts as spent, at its greatest cost: whether it
was billed is not known.

SQLite's write-ahead log works among processes of one machine. A member elsewhere has a run folder, and so a file and
caps, of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_controller.errors import ConfigError
from oven_controller.runs.judge_states import FOLDER
from oven_controller.runs.sqlite_file import BUSY_S, open_database
from oven_controller.settings.model import BudgetSettings

NAME: Final = "spend.sqlite"
ROUNDING_USD: Final = 1e-9
"""US dollars: two sums of the same costs, taken in another order, differ by less."""

_TABLES = """
CREATE TABLE IF NOT EXISTS spent (
    member TEXT PRIMARY KEY, calls INTEGER NOT NULL, unanswered INTEGER NOT NULL, unpriced INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, usd REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS held (
    id INTEGER PRIMARY KEY AUTOINCREMENT, member TEXT NOT NULL, calls INTEGER NOT NULL, unanswered INTEGER NOT NULL,
    unpriced INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, usd REAL NOT NULL
);
"""
_SUMS = "SUM(calls), SUM(unanswered), SUM(unpriced), SUM(input_tokens), SUM(output_tokens), SUM(usd)"


@dataclass(frozen=True, slots=True)
class Spend:
    """What calls cost."""

    calls: int = 0
    """That were billed, or may have been."""
    unanswered: int = 0
    """Of those: calls that no usage is known of, counted at their greatest cost."""
    unpriced: int = 0
    """Of those: calls of models without a known price, whose US dollars are missing."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def row(self) -> tuple[float, ...]:
        """The fields in their order, which is the tables'."""
        return (self.calls, self.unanswered, self.unpriced, self.input_tokens, self.output_tokens, self.usd)

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.calls + other.calls,
            self.unanswered + other.unanswered,
            self.unpriced + other.unpriced,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.usd + other.usd,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a call may not be made."""

    cap: str
    """Which setting says so, and how far it is used up; for people."""
    final: bool
    """No later one may, either. Otherwise calls under way hold what is left, and may give some of it back."""


class ModelSpend:
    """One member's view of the file. Not for several threads."""

    def __init__(self, folder: Path, member: str, committee: BudgetSettings, own: BudgetSettings) -> None:
        """Opens `folder`/spend.sqlite, or makes it. What an earlier process of this member still held is booked.

        Raises ConfigError where it cannot be used: damaged, or not to be written.
        """
        self.path = folder / NAME
        self._member = member
        self._caps = ((committee, "committee.budget"), (own, f"committee.members.{member}.budget"))
        self.capped = committee.capped or own.capped
        """Whether anything is capped."""
        try:
            folder.mkdir(exist_ok=True)
            self._file = open_database(self.path, _TABLES)
            with self._transaction():
                self._book(_by_member(self._file, "held").get(member, Spend()))
                self._file.execute("DELETE FROM held WHERE member = ?", (member,))
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"what the judges of this run have spent cannot be read: {self.path} ({error}); restore the file, or "
                "remove it to count from zero, and then lower committee.budget by what was spent"
            ) from error

    def hold(self, greatest: Spend) -> int | Refused:
        """Room for one call, as a number to give back to `book`. Raises sqlite3.Error where nothing can be written."""
        with self._transaction():
            if refused := self._refused(greatest):
                return refused
            row = (self._member, *greatest.row)
            found = self._file.execute("INSERT INTO held VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid
        assert found is not None
        return found

    def _refused(self, greatest: Spend) -> Refused | None:
        if not self.capped:
            return None
        booked, held = _by_member(self._file, "spent"), _by_member(self._file, "held")
        for budget, setting, names in (
            (*self._caps[0], {*booked, *held}),
            (*self._caps[1], {self._member}),
        ):
            spent = sum((booked[name] for name in names if name in booked), Spend())
            under_way = sum((held[name] for name in names if name in held), Spend())
            for final, used in ((True, spent), (False, spent + under_way)):
                if over := _over(budget, setting, used, greatest):
                    return Refused(over, final)
        return None

    def book(self, held: int, cost: Spend) -> None:
        """The call has ended, and came to `cost`; nothing, if it was not billed. Raises sqlite3.Error."""
        with self._transaction():
            self._file.execute("DELETE FROM held WHERE id = ?", (held,))
            self._book(cost)

    def close(self) -> None:
        self._file.close()

    def _book(self, cost: Spend) -> None:
        if cost == Spend():
            return
        self._file.execute(
            "INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (member) DO UPDATE SET "
            "calls = calls + excluded.calls, unanswered = unanswered + excluded.unanswered, "
            "unpriced = unpriced + excluded.unpriced, input_tokens = input_tokens + excluded.input_tokens, "
            "output_tokens = output_tokens + excluded.output_tokens, usd = usd + excluded.usd",
            (self._member, *cost.row),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """The write lock from the beginning: two processes may not both see the same room."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")


def read_spend(run: Path) -> dict[str, Spend]:
    """Member → what it has spent in the run whose folder this is, what is held for calls under way not counted; empty
    where nothing was. Raises ConfigError where the file cannot be read."""
    path = run / FOLDER / NAME
    if not path.exists():
        return {}
    try:
        reading = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(reading, uri=True, timeout=BUSY_S)) as file:
            return dict(sorted(_by_member(file, "spent").items()))
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error


def _by_member(file: sqlite3.Connection, table: str) -> dict[str, Spend]:
    return {
        member: Spend(*sums) for member, *sums in file.execute(f"SELECT member, {_SUMS} FROM {table} GROUP BY member")
    }


def _over(budget: BudgetSettings, setting: str, used: Spend, more: Spend) -> str:
    """Which cap `more` would go over, in words; empty for none."""
    if budget.usd is not None and used.usd + more.usd > budget.usd + ROUNDING_USD:
        return f"{setting}.usd is {budget.usd:g}, {used.usd:.4g} is used and a call may cost {more.usd:.2g}"
    for name, cap, spent, wanted in (
        ("tokens", budget.tokens, used.tokens, more.tokens),
        ("calls", budget.calls, used.calls, more.calls),
    ):
        if cap is not None and spent + wanted > cap:
            return f"{setting}.{name} is {cap}, {spent} are used and a call may take {wanted}"
    return ""
