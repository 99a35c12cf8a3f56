"""The vocabulary every part shares: pools, block keys, contracts, budgets, report frames, tenants.

Pure: nothing here opens a socket, reads a clock, touches a database or knows who calls it.
"""
