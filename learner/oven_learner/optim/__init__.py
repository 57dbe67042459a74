"""Gauges and knobs for any torch optimizer, in a trainer or a custom loop."""
