"""The panels beside the charts, in their order: a new one is a widget and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from oven_tui.model.view import MonitorView
from oven_tui.widgets.agents import Agents
from oven_tui.widgets.base import Panel
from oven_tui.widgets.decision_list import Decisions

MakePanel: TypeAlias = Callable[[MonitorView], Panel]
PANELS: Final[tuple[MakePanel, ...]] = (Agents, Decisions)
"""A panel's height is its widget's: `DEFAULT_CSS` of its class, or styles.tcss."""
