"""What a study is doing: its state, made of events alone, and the views of it."""
