"""A whole fleet as processes on one machine, and the command line."""
