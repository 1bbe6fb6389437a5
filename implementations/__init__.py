"""One implementation of a recurrent layer to a file; discovered by listing this folder."""
