"""Agents that are wrong or lie, written as somebody would who plugs one in. No entry point names them; `bench hostile`
runs them against a real stack, each with an agent's key and nothing more.
"""
