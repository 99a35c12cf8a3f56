"""HTTP by native code: server, client of workers and relay on threads of their own, beside the Python event loop.

completions   tells callers on the event loop what the native threads have done
"""
