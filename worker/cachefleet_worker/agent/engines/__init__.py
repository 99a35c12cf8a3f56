"""Inference engines: each has a folder of its own, which knows its routes, its metrics' names and its messages.

tls    how an engine that serves TLS is verified
"""
