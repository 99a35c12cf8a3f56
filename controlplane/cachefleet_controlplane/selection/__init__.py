"""The workers of a fleet for one decision, and the choice among them in native code.

choice         asks native code for the best of a table's workers, and makes a decision of it
eligibility    what a worker is to be selected for, and the pools whose role allows it
selector       selects a worker by a prompt's block keys
text_selector  the same by a prompt's text, where block keys are unknown
worker_table   the workers of a fleet for one duty
worker_tables  the tables of all fleets
"""
