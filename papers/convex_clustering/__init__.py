"""Personalization by convex clustering, arXiv 2202.00718: ellipses, rounds of the algorithms, and real clients."""
