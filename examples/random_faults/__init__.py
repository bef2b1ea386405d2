"""Random faults of ``syncpretrain train``: drawn, played through the command line, checked."""

from __future__ import annotations
