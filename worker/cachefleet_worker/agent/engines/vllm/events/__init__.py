"""Follows the KV event stream of one engine rank: order, gaps, replays, snapshots.

epoch             one engine process's stream: next number, batches held back
event_reader      decodes batches and applies them to the held blocks
follower          state machine that orders batches: inputs in, effects out
follower_state    the follower's state and its transitions
kv_events         KV event batches, and the plugin's marks in them
messages          inputs and effects of the follower; frames of vLLM's event sockets
recovery          when to ask for a snapshot, and how long unproven blocks are still reported
replay_client     client of vLLM's replay socket
snapshot_client   client of the plugin's snapshots
source            the sockets: feeds the follower and carries out its effects
"""
