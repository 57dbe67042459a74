"""Agents that ask a language model: `tuner` for votes and `author` for training prompts.

An agent's `vote` method never waits for the model. It puts a question into a slot (`question_slot.py`) and collects the
reply at a later tick. A companion coroutine sends the question to the model (`agent_model.py`). Both agents are off
until the settings name a model. Their votes cannot be reproduced from a log."""
