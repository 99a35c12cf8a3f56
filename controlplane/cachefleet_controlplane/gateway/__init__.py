"""The OpenAI API of a fleet: parse once, learn the prompt's ids, decide, relay a worker's own bytes.

Pure: ``attempts`` (what happens after each outcome of an attempt), ``request`` and ``headers`` (what is asked, what a
worker is sent), ``sse`` (events out of bytes), ``answer`` (taking out what only we asked for), ``errors`` and
``decision`` (our own words). Acting: ``asgi`` (the server's side), ``upstream`` (one attempt), ``serve`` (one
request), ``app`` (the routes).
"""
