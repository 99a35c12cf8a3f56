"""HTTP by native code: server, client of workers and relay on threads of their own, beside the Python event loop.

chosen_transport  native code or Python, and why
completions   tells callers on the event loop what the native threads have done
listening_sockets  the sockets that a server listens on
native_exchange  one request and its answer, as ASGI and for the gateway
native_server  HTTP server, with the interface of ``http_server``
public_server  the server of the public port, by the transport that was chosen
served_tls  TLS of the public port, replaced without a restart
transport_metrics  which code moves the bytes, and how often it panicked
"""
