"""Certificates that the operator issues: what is due when, keys and signatures, and the Secrets that hold them.

certificate          a certificate as far as decisions need it, and its pair with a key
certificate_secrets  Secrets and the ConfigMap of certificates: written and read
issuing              new keys and signed certificates
rotation             what is to be issued, trusted or retired now (pure)
server_names         the names in the certificates of servers (pure)
trust                the authorities by which the operator knows the control plane
"""
