"""Candidates of one decision, and the call of ``routing`` that chooses among them, in Python or native code.

candidate_table        the candidates of a fleet as rows, kept between decisions for native code
candidate_tables       the tables of all fleets
native_choice          a decision of what native code says of a table's candidates
native_selection       selector in native code
native_text_selection  selector by prompt text in native code
selection              selector in Python; roles and eligibility of workers
text_selection         selector by prompt text, where block keys are unknown
"""
