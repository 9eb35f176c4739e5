"""What all papers share: rows held to bars, the list of reproductions, cells in a file."""
