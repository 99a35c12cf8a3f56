"""Infrastructure that all processes but the plugin share: Kubernetes client, logging, caches, event streams, tasks.

backoff         exponential back-off
expiring_cache  bounded cache whose entries expire
kubernetes      Kubernetes API over HTTP: requests, watches, retryable and permanent errors
known_results   results of pure functions, remembered
logs            logging set-up of a process
lru             map bounded in entries
process_folders temporary folders of one process, also removed after one that was killed
random_ids      random names
sse             splits a byte stream into server-sent events
tasks           background tasks, restarted or run once
tls             TLS contexts that follow their files
"""
