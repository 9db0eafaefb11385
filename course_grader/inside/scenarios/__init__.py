"""How an answer is run inside a rank, once for all exercises that run alike. No oracle, no bounds."""
