"""The learner's side: the client on the training thread, actuators, attach, and the recipes."""
