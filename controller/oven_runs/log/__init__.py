"""Pure functions over a run's log: replay, counterfactuals, views and reports."""
