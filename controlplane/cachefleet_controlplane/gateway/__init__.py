"""The gateway: OpenAI's and Anthropic's HTTP APIs in front of a fleet of vLLM workers.

tenant_admission    a request's tenant by API key, its limits, and accounting of its usage
app                 the routes, as an ASGI application
answers_under_way   requests under way, and their end when the replica stops
body_budget         bytes of all bodies held at once, shared between tenants
dry_run             dry-run decisions for the admin API
gateway_bounds      bounds on what clients send and read
health              /health, /ping, /version
hot_observer        feeds the tracker of hot prefixes with placed requests
model_cards         /v1/models: models with the capabilities of their fleets
openapi             /openapi.json
openapi_schemas     its JSON Schemas of bodies, answers and errors
request_account     metrics, usage and records of requests as they end
request_spans       a traced request as spans
request_bodies      reads and parses bodies within their bounds
response_resources  below /v1/responses: stored responses, their items, counts of tokens
shortfall_records   why less of a prompt was cached than predicted, and what that tells of the worker
engine_deaths/      requests in flight when engines died, and refusing those that end engines
apis/               what differs between the APIs: bodies, answers, streams
attempts/           sends a request to workers: retries, prefill, resuming
handles/            what workers keep of conversations, and requests that refer to it
cache_accounts/     tokens lost by cause, and hot prefixes for people
conversations/      turns of conversations: checkpoints, stored responses
placement/          the input of a decision, the wait for room, refusals, the trace
responses_socket/   responses over WebSocket
rendering/          a prompt's length and block keys
upstream/           the HTTP client of the workers, and what their answers say
"""
