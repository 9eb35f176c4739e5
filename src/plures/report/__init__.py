"""Reports: what a person reads."""
