"""Clusters of clients, each with a model of its own: HypCluster and its kin."""
