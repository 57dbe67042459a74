"""Agents that ask a language model: `tuner` for a vote, `author` for prompts.

`vote` never waits: it leaves a question on the desk (`desk.py`), which a companion coroutine sends to the model
(`asker.py`), and finds the reply at a later tick. Both agents are off until the settings name a model. Their votes
cannot be repeated from a log.
"""
