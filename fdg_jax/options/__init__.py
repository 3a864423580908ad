"""Options: their declarations, their allowed values, and the parser of command lines and files of options."""
