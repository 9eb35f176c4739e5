"""Robust federated clustering, arXiv 2306.08393: regressions, blobs, and attacked clients with MNIST's digits."""
