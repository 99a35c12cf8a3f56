"""Candidates of one decision, and the choice among them in native code.

candidate_table   the candidates of a fleet with their loads, kept between decisions
candidate_tables  the tables of all fleets
choice            asks native code for the best of a table's candidates, and makes a decision of it
eligibility       what a worker is to be selected for; roles and readiness: who may be a candidate
selector          selects a worker by a prompt's block keys
text_selector     the same by a prompt's text, where block keys are unknown
"""
