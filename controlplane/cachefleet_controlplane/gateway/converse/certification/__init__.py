"""Certificates of render profiles: examinations that grant them, and canaries that revoke them.

canary         compares a share of verified prefixes with a plain render
certificates   certificates, as the store has them and this replica knows them
examination    the chats of an examination, and the verdict on the answers
examiner       examines profiles, on request and by itself
plain_render   token ids as vLLM itself renders them
"""
