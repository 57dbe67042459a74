"""`oven.bake(model, tokenizer, …)`: train a model under the controller with one call.

The call takes prompts, judges, teachers and a model description. It uses an existing stack or starts its own.
"""
