"""FedCLUP, arXiv 2410.08934: the degree of personalization and what it costs, exactly and round by round."""
