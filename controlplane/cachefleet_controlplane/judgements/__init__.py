"""What the control plane judges by the minute, of contracts and of its own advice, kept in the store.

judged_minutes        the minutes of one thing that was promised or foretold: which were judged, which missed why (pure)
judgement_log         writes what is new now and then, and reads what was judged before or elsewhere
judgement_repository  minutes, and pools' changes of size, in SQL
"""
