"""The folder that `oven-controller run` puts on PYTHONPATH: Python runs its sitecustomize at the start."""
