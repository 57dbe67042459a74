"""Which member of a committee judges in a role, and what that makes of the weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oven_controller.errors import UnknownNameError
from oven_controller.settings.model import MemberSettings


def chosen(
    members: Mapping[str, MemberSettings], role: str, provider: str | None, model: str | None, name: str | None
) -> str:
    """The first member in this role that is called so, has this provider or is at its address, and asks this model.
    Raises UnknownNameError for a role that no member has, and where no member in it fits."""
    roles = {member.role for member in members.values()}
    if role not in roles:
        raise UnknownNameError("role", role, roles)
    of_role = {key: member for key, member in members.items() if member.role == role}
    for key, member in of_role.items():
        at_provider = provider is None or provider == member.provider or provider.lower() in member.base_url.lower()
        if at_provider and model in (None, member.model) and name in (None, key):
            return key
    asked = " ".join(word for word in (name, provider, model) if word)
    raise UnknownNameError(f"member in the role {role}", asked, of_role)


def moved(
    weights: Mapping[str, float], members: Mapping[str, MemberSettings], fitting: Mapping[str, str]
) -> dict[str, float]:
    """The weights with those of each role in `fitting` all on its member there; an even share where they were 0."""
    found = dict(weights)
    for role, member in fitting.items():
        of_role = [key for key, one in members.items() if one.role == role and key in found]
        whole = sum(found[key] for key in of_role) or 1.0 / len(found)
        found |= {key: whole if key == member else 0.0 for key in of_role}
    return found
