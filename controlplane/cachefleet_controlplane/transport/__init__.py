"""HTTP by native code: server, client of workers and relay on threads of their own, beside the Python event loop.

client_websocket  uvicorn's WebSockets for clients: deadlines of messages, a shutdown that ends answers first
completions   the threads, and handlers on the event loop of what they have done
listening_sockets  the sockets that a server listens on
native_exchange  one request and its answer, as ASGI and for the gateway
native_server  HTTP server
served_tls  TLS of a port, replaced without a restart
transport_metrics  version of the native code, and how often it panicked
websocket_protocol  uvicorn's WebSockets for agents: a smaller bound on a connection's first message
websocket_server  uvicorn behind a Unix socket, for WebSockets
"""
