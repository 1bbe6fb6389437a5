"""What others take of a busy machine while a column is timed, and what can still be said of its times."""
