"""What differs between the APIs: what a worker is sent, how its answer is passed on. Native code reads the bodies.

api              the protocol of an API, and the base whose answers pass unchanged
audio_form       forms with a file, of speech to text, and the form that a worker is sent
endpoint_apis    the API of each endpoint; /v1/chat/completions and /v1/completions
messages         /v1/messages and its count of tokens
output_schemas   JSON schemas for answers that no value can match
parse            a client's body to a RequestInfo, and to a worker's body; clients' names of media
request_info     what routing needs to know of a request
responses        /v1/responses
"""
