"""One layer's parameters and how an epoch trains them; no threads."""
