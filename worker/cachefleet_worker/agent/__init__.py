"""The process beside an engine: follows its block events and load, and reports both to every control plane.

Files that decide are pure (events, follower, residents, chains, stream, vitals, phases, policy); files that act are
thin (source, engine, session, feed, uplink, warmth, server, lifecycle). Nothing here logs, exports or sends a token id,
a prompt, a salt or an engine's block hash.
"""
