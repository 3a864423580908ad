"""The devices of the stages, and the transport of messages between them."""
