"""The kinds of units of a layer, and visible units in blocks of several kinds.

``kinds`` has a record of equations and properties for each kind, ``text`` the text of blocks such
as ``bernoulli:20,softmax:3x7``, and ``blocks`` their record.
"""
