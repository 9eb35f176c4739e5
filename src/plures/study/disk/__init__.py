"""What a study leaves on the disk: names of files and columns, results written and read, states of runs, exported models."""
