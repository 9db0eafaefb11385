"""What a student's commands do: find notebooks, check them, carry answers over, keep them; on plain JSON."""
