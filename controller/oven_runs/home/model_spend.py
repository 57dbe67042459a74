"""Track and cap a run's spending on language models, in a SQLite file with one account per caller.

Before each call, its maximum cost is reserved. Afterwards, its real cost is booked. Each of these is one transaction
over all accounts, so the caps apply across processes, across restarts of a judge or the stack, and across `--resume`.
If a process dies, its reservations count as spent, because they may have been billed.

SQLite's write-ahead log works among processes of one machine. A judge on another machine has its own run folder, and
therefore its own file and caps.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oven_core.errors import ConfigError

if TYPE_CHECKING:  # slow to import, and a reader of the costs does not need it
    from oven_runs.settings.committee_settings import BudgetSettings

SPEND_FILE: Final = "spend.sqlite"
"""File name in the run's folder."""
JUDGES: Final = "judges"
"""The account whose sub-accounts are the committee's judges: "judges/critic"."""
ROUNDING_USD: Final = 1e-9
"""Maximum rounding difference in US dollars between two sums of the same costs in different order."""
LOCK_TIMEOUT_S: Final = 5.0
"""Timeout in seconds for another process's lock on the file. A transaction takes less than a millisecond."""
LOCK_RETRY_S: Final = 0.01

_FIELDS = "calls, unanswered, unpriced, input_tokens, output_tokens, usd"
_COLUMNS = (
    "calls INTEGER NOT NULL, unanswered INTEGER NOT NULL, unpriced INTEGER NOT NULL, input_tokens INTEGER NOT NULL, "
    "output_tokens INTEGER NOT NULL, usd REAL NOT NULL"
)
_TABLES = f"""
CREATE TABLE IF NOT EXISTS spent (account TEXT PRIMARY KEY, {_COLUMNS});
CREATE TABLE IF NOT EXISTS held (id INTEGER PRIMARY KEY AUTOINCREMENT, account TEXT NOT NULL, {_COLUMNS});
"""
"""`spent` has the booked costs by account, and `held` has one row per reservation."""
_SUMS = ", ".join(f"SUM({field})" for field in _FIELDS.split(", "))


@dataclass(frozen=True, slots=True)
class Spend:
    """The number and cost of calls. The fields are in the same order as the tables' columns."""

    calls: int = 0
    """Number of calls that were or may have been billed."""
    unanswered: int = 0
    """Number of these calls without known usage. They are counted at their maximum cost."""
    unpriced: int = 0
    """Number of these calls to models with an unknown price. Their cost in US dollars is not included."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, more: Spend) -> Spend:
        return Spend(*map(add, astuple(self), astuple(more)))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a call, with its reason."""

    reason: str
    """The cap's setting and how much of it is used, as a sentence."""
    is_final: bool
    """Whether later calls will be refused too. If false, running calls have reserved the rest and may release some."""


@dataclass(frozen=True, slots=True)
class Cap:
    """A cap on spending."""

    limits: BudgetSettings
    setting: str
    """The cap's name in a settings file, for messages."""
    scope: str = ""
    """The account that is capped, together with the accounts below it; empty for all accounts."""

    def applies_to(self, account: str) -> bool:
        return _is_within(account, self.scope)


class ModelSpend:
    """Access to the spending file from one process. Threads may share it."""

    def __init__(self, path: Path | None, caps: Sequence[Cap] = (), owner: str = "") -> None:
        """Open or create the file, or use memory if `path` is None. Only this process may spend from the account
        `owner` and the accounts below it, or from all accounts if `owner` is empty. So reservations in these accounts
        come from an earlier process and are booked as spent. Raises ConfigError for a damaged or unwritable file."""
        self.path = path
        self._caps = tuple(cap for cap in caps if cap.limits.is_capped)
        self._lock = threading.Lock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._database = open_database(path, _TABLES)
            with self._transaction():
                for account, cost in _sum_by_account(self._database, "held").items():
                    if _is_within(account, owner):
                        self._book(cost, account)
                        self._database.execute("DELETE FROM held WHERE account = ?", (account,))
        except (sqlite3.Error, OSError) as error:
            setting = caps[0].setting if caps else "the budget"
            raise ConfigError(
                f"the spending on models cannot be read from {path} ({error}); restore the file, or remove it to start "
                f"counting at zero, and then lower {setting} by the amount already spent"
            ) from error

    @property
    def is_capped(self) -> bool:
        return bool(self._caps)

    def reserve(self, account: str, max_cost: Spend) -> int | Refusal:
        """Reserve a call's maximum cost. Return the reservation's number, to pass to `book`. Raises sqlite3.Error."""
        with self._transaction():
            if refusal := self._check_caps(account, max_cost):
                return refusal
            row = (account, *astuple(max_cost))
            number = self._database.execute("INSERT INTO held VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid
        assert number is not None
        return number

    def book(self, reservation: int, cost: Spend) -> None:
        """Replace a reservation by the call's real cost, which is zero if it was not billed. Raises sqlite3.Error."""
        with self._transaction():
            row = self._database.execute("DELETE FROM held WHERE id = ? RETURNING account", (reservation,)).fetchone()
            if row is not None:
                self._book(cost, row[0])

    def spent(self, scope: str = "") -> dict[str, Spend]:
        """Return the spending of each account within `scope`, excluding running calls. Raises sqlite3.Error."""
        with self._lock:
            return _spent_within(self._database, scope)

    def close(self) -> None:
        self._database.close()

    def _check_caps(self, account: str, max_cost: Spend) -> Refusal | None:
        caps = [cap for cap in self._caps if cap.applies_to(account)]
        if not caps:
            return None
        booked, reservations = _sum_by_account(self._database, "spent"), _sum_by_account(self._database, "held")
        for cap in caps:
            spent = sum((spend for name, spend in booked.items() if cap.applies_to(name)), Spend())
            reserved = sum((spend for name, spend in reservations.items() if cap.applies_to(name)), Spend())
            for used, is_final in ((spent, True), (spent + reserved, False)):
                if reason := _describe_exceeded_limit(cap, used, max_cost):
                    return Refusal(reason, is_final)
        return None

    def _book(self, cost: Spend, account: str) -> None:
        if cost == Spend():
            return
        added = ", ".join(f"{field} = {field} + excluded.{field}" for field in _FIELDS.split(", "))
        self._database.execute(
            f"INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (account) DO UPDATE SET {added}",
            (account, *astuple(cost)),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction that takes the write lock first, so that two processes cannot reserve the same amount."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")


def open_database(path: Path | None, tables: str) -> sqlite3.Connection:
    """Open a SQLite file in autocommit mode, and create `tables`. If `path` is None, use memory. Threads that share the
    connection need a lock. Raises sqlite3.Error, and DatabaseError if the file is damaged."""
    location = path or ":memory:"
    database = sqlite3.connect(location, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _use_write_ahead_log(database)
        # NORMAL: the data survives if the process dies, but a power cut may lose the last writes.
        database.executescript(f"PRAGMA synchronous = NORMAL; {tables}")
        (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(result)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not apply its timeout to this switch: if another process is switching
    too, it fails at once. So this function retries for LOCK_TIMEOUT_S. Raises sqlite3.Error."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(LOCK_RETRY_S)


def read_spend(run: Path, scope: str = "") -> dict[str, Spend]:
    """Return the spending of each account within `scope` in the run's folder, excluding running calls; empty without a
    file. Raises ConfigError if the file cannot be read."""
    path = run / SPEND_FILE
    if not path.exists():
        return {}
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT_S)) as database:
            return _spent_within(database, scope)
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error


def _is_within(account: str, scope: str) -> bool:
    return not scope or account == scope or account.startswith(f"{scope}/")


def _spent_within(database: sqlite3.Connection, scope: str) -> dict[str, Spend]:
    totals = sorted(_sum_by_account(database, "spent").items())
    return {name: spend for name, spend in totals if _is_within(name, scope)}


def _sum_by_account(database: sqlite3.Connection, table: str) -> dict[str, Spend]:
    rows = database.execute(f"SELECT account, {_SUMS} FROM {table} GROUP BY account")
    return {account: Spend(*sums) for account, *sums in rows}


def _describe_exceeded_limit(cap: Cap, used: Spend, more: Spend) -> str:
    """Describe the limit that `more` would exceed. Return an empty string if there is none."""
    limits, setting = cap.limits, cap.setting
    if limits.usd is not None and used.usd + more.usd > limits.usd + ROUNDING_USD:
        return f"{setting}.usd is {limits.usd:g}, {used.usd:.4g} is used and a call may cost {more.usd:.2g}"
    for name, limit, spent, needed in (
        ("tokens", limits.tokens, used.tokens, more.tokens),
        ("calls", limits.calls, used.calls, more.calls),
    ):
        if limit is not None and spent + needed > limit:
            return f"{setting}.{name} is {limit}, {spent} are used and a call may take {needed}"
    return ""
