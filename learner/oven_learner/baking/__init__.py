"""`oven.bake(model, tokenizer, …)`: one call from a model to a steered run.

Prompts, judges, teachers and a description go in; what comes out trains the model under the controller, in a stack that
is there already or in one of its own.
"""
