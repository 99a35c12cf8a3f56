"""Admits requests: the tenant by API key, its limits, the bounds of bodies.

admit_layer       the entry: reads a request's body and finds its model
tenant_admission  a request's tenant by API key, its limits, and accounting of its usage
counted_use       what a request used, as limits and usage count it
cold_start        holds requests of models that have no ready worker until one is warm
fairness_ids        tenants of requests without keys, by a header
passed_requests   passes requests for models of other control planes on to these
model_lookup      the model that a request names
alias_choice      which of the models that share an alias answers a request
objective_priority  a request's priority by its InferenceObjective
keep_alive        comments to a stream that waits for its first token
request_bodies    reads and parses bodies within their bounds
"""
