"""What runs in the sandbox and on the ranks; it imports nothing of the judge's."""
