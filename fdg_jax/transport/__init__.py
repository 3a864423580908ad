"""Where the stages are, and how messages get to them."""
