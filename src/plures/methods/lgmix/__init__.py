"""LG-Mix: local and global models mixed layer by layer, by how fast they converge."""
