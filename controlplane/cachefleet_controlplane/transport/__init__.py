"""HTTP by native code: server, client of workers and relay on threads of their own, beside the Python event loop.

chosen_transport  native code or Python, and why
completions   tells callers on the event loop what the native threads have done
transport_metrics  which code moves the bytes, and how often it panicked
"""
