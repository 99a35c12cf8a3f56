"""Candidates of one decision, and the call of ``routing`` that chooses among them, in Python or native code.

candidate_table    the candidates of a fleet as rows, kept between decisions for native code
native_selection   selector in native code
selection          selector in Python; roles and eligibility of workers
text_selection     selector by prompt text, where block keys are unknown
"""
