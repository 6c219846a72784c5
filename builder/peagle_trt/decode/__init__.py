"""The speculative decode loop: backend-free, the same object in tests and in the server."""
