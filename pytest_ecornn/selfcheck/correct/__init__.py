"""Right implementations of unusual forms, one to a file: a check that fails one is wrong itself."""
