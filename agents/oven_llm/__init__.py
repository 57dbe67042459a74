"""Language models in the controller: judges, the supervisor, diagnosis, voting agents and the code sandbox."""
