"""Speed: step times measured, fitted and predicted."""
