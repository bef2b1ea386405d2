"""The kinds of units of a layer, and visible units in blocks of several kinds."""
