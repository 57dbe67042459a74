"""Language models in the controller: judges, the supervisor, diagnosis, teachers of traces and their sandbox."""
