"""The kinds of units of a layer, and visible units in blocks of several kinds.

``kinds`` has a record of equations and properties for each kind, ``blocks`` the text and the record
of blocks such as ``bernoulli:20,softmax:3x7``.
"""

from syncpretrain.units import blocks

__all__ = ["blocks"]  # importing the package is enough for kind_of() to read texts of blocks
