"""A page and pictures of what `bench` measured; nothing on them comes from a network."""
