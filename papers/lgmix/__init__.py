"""LG-Mix, OpenReview 7pWRLDBAtc: mixing by convergence rates under feature shift."""
