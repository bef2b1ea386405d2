"""Plots of stacks and runs, as functions that return the axes of Matplotlib.

Each function draws on the given ``axes``, or on axes of a new figure. Matplotlib is the extra
``plot``: ``pip install "syncpretrain[plot]"``.
"""

from syncpretrain.plot.course import learning_curves, space_time
from syncpretrain.plot.stacks import activities, codes, filters, reconstructions

__all__ = ["activities", "codes", "filters", "learning_curves", "reconstructions", "space_time"]
