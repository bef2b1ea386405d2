"""Names of the schedules without versions, and so without a pace."""

from __future__ import annotations

__all__ = ["ASYNC", "UNTRAINED"]

ASYNC = "async"  # replicas and a parameter server
UNTRAINED = "none"  # random weights, which only fine-tuning trains
