"""One run and its folder: settings and data in, model, metrics, events and checkpoints out."""
