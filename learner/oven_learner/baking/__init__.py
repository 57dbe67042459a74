"""`oven.bake(model, tokenizer, …)`: train a model under the controller with one call.

The call combines prompts, judges, teachers and a description. It uses an existing stack or starts its own.
"""
