"""`oven.bake(model, tokenizer, …)`: train a model under the controller with one call, on an existing or new stack."""
