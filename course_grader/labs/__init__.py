"""Exercises, one file each, in a folder per lab. Judge side: never in a rank, not there in the sandbox."""
