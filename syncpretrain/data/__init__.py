"""Data sets, file readers, the split and the minibatch order."""
