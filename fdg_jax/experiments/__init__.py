"""The training commands: the paper's `cifar`, `tiny_imagenet` and `imagenet`, and `language_model` for text."""
