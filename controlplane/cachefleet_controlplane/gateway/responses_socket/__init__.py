"""Responses over WebSocket: ``GET /v1/responses``, upgraded; each ``response.create`` is one request, as by POST.

responses_socket      admits connections: API key, origin, how many; their metrics
responses_connection  one connection: requests one after the other, until it ends
create_event          what a client sends, as the POST that it stands for
event_messages        a request's answer as messages, one for each event
warm_up               `generate: false`: a prompt computed ahead, without an answer
response_memory       the last response of a connection, which its next request may continue
message_queue         messages of a connection that wait for their turn
socket_limits         bounds of connections
"""
