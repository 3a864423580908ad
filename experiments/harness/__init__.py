"""What the tables share: their runs, results, pictures and commands."""
