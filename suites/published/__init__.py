"""Published results measured again on today's machines, each table with the paper's figure in a column of its own."""
