"""How long many runs take to load and to compare, and how much memory."""
