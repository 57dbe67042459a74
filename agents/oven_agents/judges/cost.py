"""What calls cost, by the price list that ships with genai-prices (offline). An unknown price is None, never 0."""

from __future__ import annotations

from collections.abc import Sequence

from oven_agents.judges.usage import Usage


def cost_usd(provider: str, base_url: str, model: str, usages: Sequence[Usage | None]) -> float | None:
    """US dollars for these answers. None when there is none, when one did not say what it used, and when the list (or
    this installation) has no such model behind that address. Calls that never answered are not in it."""
    if not usages:
        return None
    try:
        from genai_prices import Usage as Priced
        from genai_prices import calc_price
    except ImportError:
        return None
    total = 0.0
    for usage in usages:
        if usage is None:
            return None
        priced = Priced(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens or None,
        )
        try:
            # An address is never guessed at by the model's name: one's own server may call its model anything.
            if base_url:
                price = calc_price(priced, model, provider_api_url=base_url)
            else:
                price = calc_price(priced, model, provider_id=provider)
        except (LookupError, ValueError):
            return None
        total += float(price.total_price)
    return total
