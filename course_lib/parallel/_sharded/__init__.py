"""What techniques that shard flat vectors share: a vector's layout, and optimizer state by parameter."""
