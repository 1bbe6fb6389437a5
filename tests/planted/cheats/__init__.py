"""One trick at the expense of the clock to a file."""
