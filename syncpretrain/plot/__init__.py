"""Plots of stacks and runs, as functions that return the axes of Matplotlib.

Each draws on the ``axes`` that it is given, or on those of a new figure. Matplotlib is the extra
``plot``: ``pip install "syncpretrain[plot]"``.
"""

from syncpretrain.runs.report.plots.examples import reconstructions
from syncpretrain.runs.report.plots.learning import learning_curves
from syncpretrain.runs.report.plots.space_time import space_time
from syncpretrain.runs.report.plots.units import activities, codes
from syncpretrain.runs.report.plots.weights import filters

__all__ = [
    "activities",
    "codes",
    "filters",
    "learning_curves",
    "reconstructions",
    "space_time",
]
