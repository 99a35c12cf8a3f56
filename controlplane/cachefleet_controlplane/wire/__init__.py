"""HTTP and JSON details that several rooms share.

content_encoding  decodes compressed bodies, of clients and of workers
cross_origin      which pages of other origins may read answers (CORS)
errors            error bodies and error events in the shape of each client API
event_stream      an answer of server-sent events, which ends with its client, or where that reads no more
headers           which request headers a worker is sent
http_exchange     one HTTP exchange over ASGI: body in, answer out, disconnects
json_bounds       bounds on the parts of a JSON body, before it is decoded
json_faults       what is wrong with a body that is no JSON, and where
json_members      reads and edits members of a JSON object as bytes
multipart_form    reads a form as it arrives
request_paths     paths as they are meant, and hints for those that are not here
"""
