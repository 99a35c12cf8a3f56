"""Writes docs/settings.md from the settings of all processes: their defaults, bounds and docstrings.

__main__  ``python -m tests.settings_page``
page      the page's text
rows      one row for each variable
"""
