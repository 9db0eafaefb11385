"""What compares: the engine, the sandbox it starts, and what an exercise file must hold."""
