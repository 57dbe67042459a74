"""Bench of the controller on training scripts that are not ours: does it do harm where nothing may be wrong?"""
