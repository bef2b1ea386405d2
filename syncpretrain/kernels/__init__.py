"""The equations: pure functions of arrays with ``out=``; no state, no I/O."""
