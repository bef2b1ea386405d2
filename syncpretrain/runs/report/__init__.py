"""Pictures of data and of what a stack makes of them."""
