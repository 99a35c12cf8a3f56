"""Engines that end while they answer: which requests were in flight, and which of them are refused for a while.

death_ledger      deaths of engines and the requests in flight, by digest; who is to be suspected (pure)
engine_deaths     all deaths that a gateway has seen: looks whether an engine has ended, lets suspects try in turn
exposed_request   one request: what its attempts have lost, whether it may be sent again, its error
"""
