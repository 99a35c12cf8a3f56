"""What the control plane judges by the minute, of contracts and of its own advice.

judged_minutes  the minutes of one thing that was promised or foretold: which were judged, and which missed why (pure)
"""
