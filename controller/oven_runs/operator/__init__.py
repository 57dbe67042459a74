"""An operator's commands to a run that is up."""
