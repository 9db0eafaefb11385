"""What a computation and its communication cost on described hardware: arithmetic only, no torch."""
