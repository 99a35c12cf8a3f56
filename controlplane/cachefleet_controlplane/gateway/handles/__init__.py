"""What workers keep of conversations, by handle: a request to one of them carries only what is new.

continuing          one request: by handle where its worker keeps the beginning, else whole
conversation_items  a conversation's items, and keyed digests of its beginnings
fingerprints        what a prompt was rendered by and with, for comparison
handle_memory       which worker keeps which beginning; Prometheus metrics of requests by handle
handles             for which requests handles are used
sending             how a request is sent: the protocol of the two that follow it
token_continuing    a completion that continues token ids which one worker keeps
token_reference     what a completion says of kept token ids
unseen_text         what a renderer leaves out of a body, as it says itself
"""
