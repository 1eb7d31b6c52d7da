"""Models by name: those of torchvision, timm, transformers and Keras, and some of both frameworks."""
