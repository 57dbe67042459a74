"""Recipe `oracle`: a model that answers questions about activations, with a stated confidence."""
