"""What a caller may get wrong, refused in one sentence before anything is computed."""
