"""Environment variables.

removed_variables  those that processes do not read any more
"""
