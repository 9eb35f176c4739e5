"""Worlds whose best models are known in closed form."""
