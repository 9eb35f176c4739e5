"""Personal models fused along the edges of a graph: convex clustering, PDMM, the squared penalty."""
