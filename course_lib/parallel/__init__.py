"""One file, one technique; files here never import one another, and every function takes its group."""
