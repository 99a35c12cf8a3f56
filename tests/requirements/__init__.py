"""What the system must do, by number, and the tests that show it; ``python -m tests.requirements`` writes the table."""
