"""Agents that ask a language model: `tuner` for a vote, `author` for prompts.

`vote` never waits: it leaves a question on the desk (`question_desk.py`) and finds the reply at a later tick. A
companion coroutine sends the question to the model (`asker.py`). Both agents are off until the settings name a model.
Their votes cannot be repeated from a log.
"""
