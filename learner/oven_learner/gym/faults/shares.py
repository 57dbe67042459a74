"""Settings that are shares of a whole."""

from __future__ import annotations


def moved_to(settings: dict[str, float], name: str, share: float) -> None:
    """The setting gets this share of its group's sum, and the others of the group what is left, in their proportions.
    A group's names are alike up to the last stroke."""
    group = name.rpartition("/")[0] + "/"
    total = sum(value for key, value in settings.items() if key.startswith(group))
    others = total - settings[name]
    for key in settings:
        if key.startswith(group) and key != name:
            settings[key] *= (1 - share) * total / others
    settings[name] = share * total
