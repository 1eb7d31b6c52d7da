"""The training loop of a run and its two backends, torch/ and tensorflow/.

Each framework is imported only by the code in the folder of the same name.
"""
