"""Exercises, one file each, in a folder a lab. Judge side: never in a rank, not there in the sandbox."""
