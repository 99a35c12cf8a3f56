"""TODO door sign."""
