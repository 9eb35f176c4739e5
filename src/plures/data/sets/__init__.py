"""Real data sets by name, one module each; their files lie in a folder that the user names."""
