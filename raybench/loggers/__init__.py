"""`--log`: what a study records, brought to the tools that people look at runs with."""
