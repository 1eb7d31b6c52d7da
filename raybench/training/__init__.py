"""The training loops. Each framework is imported only by the code in its own folder here."""
