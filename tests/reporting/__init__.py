"""What a test run tells: times and budgets of its tiers, failures in few lines, and which tests fail now and then."""
