"""What differs between the APIs: how a body is read, what a worker is asked besides, how its answer is told."""
