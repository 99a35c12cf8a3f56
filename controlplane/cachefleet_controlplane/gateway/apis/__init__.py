"""What differs between the APIs: how a body is read, what a worker is sent, how its answer is passed on.

api              the protocol of an API, and the base whose answers pass unchanged
chat             /v1/chat/completions and /v1/completions
endpoint_apis    the API of each endpoint; /v1/embeddings
media            media in messages, and the names that clients give them
messages         /v1/messages and its count of tokens
output_schemas   JSON schemas for answers that no value can match
parse            a client's body to a RequestInfo, and to a worker's body
request_info     what routing needs to know of a request
responses        /v1/responses
retention_hints  what clients say of caching: how long, and which prompts belong together
"""
