"""The runtime on the ranks of a cluster: rank 0 leads, the others hold layers."""
