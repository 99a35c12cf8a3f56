"""Traces of requests: W3C context in and out, and spans that are made when a request has ended.

Whether a request is traced is decided at its beginning; of one that is not, nothing is noted. OpenTelemetry is imported
by `span_export` alone, and that only where an endpoint is configured.

request_span      what is noted of a traced request as it proceeds
span              one span that has ended, as a value
span_export       the sampler, the batches and the exporter of OpenTelemetry
trace_context     W3C's traceparent
tracer            the decision at the beginning, and where ended spans go
tracing_settings  the OTEL_* variables
"""
