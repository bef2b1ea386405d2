"""The lock of what draws from a generator that belongs to the whole process."""

from __future__ import annotations

import threading

# Held for one forward pass, or for one minibatch of an iterable; never while waiting for a worker.
GLOBAL_DRAWS = threading.Lock()
