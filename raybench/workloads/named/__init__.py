"""Models by name: of torchvision, timm, transformers and Keras, and some of both."""
