"""`backtest`: an agent over a recorded run."""
