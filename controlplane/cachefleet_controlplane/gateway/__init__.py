"""The gateway: OpenAI's and Anthropic's HTTP APIs in front of a fleet of vLLM workers.

app                 the gateway as an ASGI application
layers              the layers that a request goes through: read this first
routes              paths and methods, and what answers them
access_log          a line for each request, where a setting asks for it
answers_under_way   requests under way, and their end when the replica stops
body_budget         bytes of all bodies held at once, shared between tenants
dry_run             dry-run decisions for the admin API
health              /health, /ping, /version
model_cards         /v1/models: models with the capabilities of their fleets
openapi             /openapi.json
openapi_schemas     its JSON Schemas of bodies, answers and errors
response_resources  below /v1/responses: stored responses, their items, counts of tokens
account/            accounts for requests as they end
admit/              tenants, their limits, bounds of bodies
engine_deaths/      requests in flight when engines died, and refusing those that end engines
batches/            files of requests that are answered on spare room
files/              files that tenants keep for batches
apis/               what differs between the APIs: bodies, answers, streams
retry/              sends a request to workers: retries, prefill, resuming
handles/            what workers keep of conversations, and requests that refer to it
converse/           turns of conversations: checkpoints, stored responses
place/              decides, waits for room, refuses
request/            one request, completed from layer to layer, and the notes on it
responses_socket/   responses over WebSocket
know/               a prompt's length and block keys
send/               the HTTP client of the workers, and what their answers say
"""
