"""A file or folder a technique; techniques never import one another, and every function takes its group."""
