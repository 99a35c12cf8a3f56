"""Reports of the held blocks and load to every control plane, over WebSockets.

feed         a bounded send queue for each connection
flush_timer  when changes are reported
hello        the Hello frame of a rank: identity, contract, capabilities
load_relay   passes what each control plane says of its requests in flight on to the others
stream       one rank's numbered frames in one epoch
targets      addresses of the control planes; whether one has admitted this worker
uplink       the connections, and the commands that come back
"""
