"""What is trained in the gym: a package for each task, which declares it (`TASK`)."""
