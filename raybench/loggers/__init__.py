"""`--log`: write the records of a study to TensorBoard, MLflow or Weights & Biases."""
