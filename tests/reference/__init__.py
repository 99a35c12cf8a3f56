"""Rules of native code, written plainly in Python: property tests compare them."""
