"""What scenarios are made of: a fleet of processes, its load and invariants, and ways to hurt it."""
