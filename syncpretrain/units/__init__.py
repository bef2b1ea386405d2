"""The kinds of units of a layer, and visible units in blocks of several kinds.

``kinds`` has a record of equations and properties for each kind, ``text`` the text of blocks such
as ``bernoulli:20,softmax:3x7``, and ``blocks`` their record.
"""

from syncpretrain.units import blocks

__all__ = ["blocks"]  # imported wherever kinds are, so that kind_of() reads the texts of blocks
