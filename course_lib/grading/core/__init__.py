"""What an exercise file is made of, and how the engine reads one."""
