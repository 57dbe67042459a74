"""For all tests: none asserts a time, hypothesis's own deadline included."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("oven", deadline=None)
settings.load_profile("oven")
