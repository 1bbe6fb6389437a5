"""Right implementations of unusual forms: a check that fails one is wrong itself."""
