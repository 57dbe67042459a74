"""The agents that ship with Oven Controller, one per file. Figures without a source are from docs/experiments.md."""
