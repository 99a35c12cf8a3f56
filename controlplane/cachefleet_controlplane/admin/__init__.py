"""The REST API of the people who run a fleet: who may call it, and what it shows. It never answers for a tenant."""
