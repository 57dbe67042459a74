"""What calls to language models have cost: one SQLite file, into which each account books (a judge, a teacher).

A call's greatest cost is held before the call is made, and what it came to is booked afterwards, each in one
transaction over all accounts; so the caps hold for processes that know nothing of each other, over restarts of a judge
or the stack, and over `--resume`. What a process held when it died counts as spent, at its greatest cost: whether it
was billed is not known.

SQLite's write-ahead log works among processes of one machine. A judge elsewhere has a run folder, and so a file and
caps, of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError
from oven_runs.home.judge_states import FOLDER
from oven_runs.home.sqlite_file import BUSY_S, open_database
from oven_runs.settings.committee_settings import BudgetSettings

NAME: Final = "spend.sqlite"
ROUNDING_USD: Final = 1e-9
"""US dollars: two sums of the same costs, taken in another order, differ by less."""

_TABLES = """
CREATE TABLE IF NOT EXISTS spent (
    account TEXT PRIMARY KEY, calls INTEGER NOT NULL, unanswered INTEGER NOT NULL, unpriced INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, usd REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS held (
    id INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT NOT NULL, calls INTEGER NOT NULL, unanswered INTEGER NOT NULL,
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


@dataclass(frozen=True, slots=True)
class Cap:
    """A cap on what is spent."""

    budget: BudgetSettings
    setting: str
    """Its name for people, as in a file of settings."""
    whole: bool = True
    """It holds for all accounts of the file together; otherwise for the one that it is given for."""


class ModelSpend:
    """One account's view of the file. Threads may share it."""

    def __init__(
        self, path: Path | None, account: str, caps: Sequence[Cap] = (), *, booked_by_others: bool = True
    ) -> None:
        """Opens the file, or makes it. What an earlier process of this account still held is booked; of any account,
        where no other process books there. `path` None: it is in memory, and gone with the process.

        Raises ConfigError where it cannot be used: damaged, or not to be written.
        """
        self.path = path
        self._account = account
        self._caps = tuple(caps)
        self.capped = any(cap.budget.capped for cap in caps)
        """Whether anything is capped."""
        self._lock = threading.Lock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_database(path, _TABLES)
            with self._transaction():
                for name, cost in _by_account(self._file, "held").items():
                    if name == account or not booked_by_others:
                        self._book(cost, name)
                        self._file.execute("DELETE FROM held WHERE account = ?", (name,))
        except (sqlite3.Error, OSError) as error:
            lowered = caps[0].setting if caps else "the budget"
            raise ConfigError(
                f"what was spent on models cannot be read: {path} ({error}); restore the file, or remove it to count "
                f"from zero, and then lower {lowered} by what was spent"
            ) from error

    def hold(self, greatest: Spend, account: str = "") -> int | Refused:
        """Room for one call, as a number to give back to `book`. `account`: another one than the view's. Raises
        sqlite3.Error where nothing can be written."""
        account = account or self._account
        with self._transaction():
            if refused := self._refused(greatest, account):
                return refused
            row = (account, *greatest.row)
            found = self._file.execute("INSERT INTO held VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid
        assert found is not None
        return found

    def _refused(self, greatest: Spend, account: str) -> Refused | None:
        if not self.capped:
            return None
        booked, held = _by_account(self._file, "spent"), _by_account(self._file, "held")
        for cap in self._caps:
            names = {*booked, *held} if cap.whole else {account}
            spent = sum((booked[name] for name in names if name in booked), Spend())
            under_way = sum((held[name] for name in names if name in held), Spend())
            for final, used in ((True, spent), (False, spent + under_way)):
                if over := _over(cap.budget, cap.setting, used, greatest):
                    return Refused(over, final)
        return None

    def book(self, held: int, cost: Spend) -> None:
        """The call has ended, and came to `cost`; nothing, if it was not billed. Raises sqlite3.Error."""
        with self._transaction():
            found = self._file.execute("DELETE FROM held WHERE id = ? RETURNING account", (held,)).fetchone()
            self._book(cost, found[0] if found else self._account)

    def spent(self) -> dict[str, Spend]:
        """Account → what was spent, in all processes; without what is held for calls under way. Raises
        sqlite3.Error."""
        with self._lock:
            return dict(sorted(_by_account(self._file, "spent").items()))

    def close(self) -> None:
        self._file.close()

    def _book(self, cost: Spend, account: str) -> None:
        if cost == Spend():
            return
        self._file.execute(
            "INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (account) DO UPDATE SET "
            "calls = calls + excluded.calls, unanswered = unanswered + excluded.unanswered, "
            "unpriced = unpriced + excluded.unpriced, input_tokens = input_tokens + excluded.input_tokens, "
            "output_tokens = output_tokens + excluded.output_tokens, usd = usd + excluded.usd",
            (account, *cost.row),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """The write lock from the beginning: two processes may not both see the same room."""
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")


def judges_file(run: Path) -> Path:
    """Where the judges of the run with this folder book."""
    return run / FOLDER / NAME


def read_spend(run: Path) -> dict[str, Spend]:
    """Judge → what it has spent in the run whose folder this is, what is held for calls under way not counted; empty
    where nothing was. Raises ConfigError where the file cannot be read."""
    path = judges_file(run)
    if not path.exists():
        return {}
    try:
        reading = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(reading, uri=True, timeout=BUSY_S)) as file:
            return dict(sorted(_by_account(file, "spent").items()))
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error


def _by_account(file: sqlite3.Connection, table: str) -> dict[str, Spend]:
    return {
        account: Spend(*sums)
        for account, *sums in file.execute(f"SELECT account, {_SUMS} FROM {table} GROUP BY account")
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
