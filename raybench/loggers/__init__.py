"""`--log`: writes the records of a study to TensorBoard, MLflow or Weights & Biases."""
