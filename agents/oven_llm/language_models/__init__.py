"""Agents that ask a language model: `tuner` for a vote, `author` for prompts.

Each is a synchronous agent with a companion (oven_agents.runtime.companion) that does the asking. They are off unless
the run's settings name a model, and their votes cannot be made again from a log.
"""
