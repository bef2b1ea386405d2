"""Which schedule suits a stack on this machine: measured, foretold, picked."""

from syncpretrain.planning.choice import Plan, plan

__all__ = ["Plan", "plan"]
