"""Thirty-one faults, each injected for real, with what must hold meanwhile and a budget of time until it is mended.

A scenario is load, fault, heal, invariants. ``rows`` is the table of all of them and of the tests that inject them,
here and elsewhere; `make chaos` runs these and writes docs/reliability.md.
"""
