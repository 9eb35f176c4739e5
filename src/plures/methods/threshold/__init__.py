"""Clustering of gradients and momenta by thresholds, for federations with attackers."""
