"""The tables' common code: their runs, results, pictures and commands."""
