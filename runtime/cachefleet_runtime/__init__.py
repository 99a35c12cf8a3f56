"""What every process needs and what touches the outside: one of each, used by all packages but the plugin.

backoff      the pause before the next try
kubernetes   the Kubernetes API over HTTP: requests, watches, two families of errors
logs         the process's logging
lru          a map bounded in entries
sse          server-sent events out of bytes
tasks        a task that is started again where it fails
"""
