"""Planning: measure a stack on this machine, predict each schedule, and choose one."""

from syncpretrain.planning.choice import Plan, plan

__all__ = ["Plan", "plan"]
