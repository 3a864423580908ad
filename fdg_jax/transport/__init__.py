"""The devices of the stages, and how messages get to them."""
