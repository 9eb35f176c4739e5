"""Three approaches for personalization, arXiv 2002.10619: a synthetic world, and EMNIST's writers."""
