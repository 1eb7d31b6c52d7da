"""Published scaling studies, each to be run again by its name; `find` lists them."""
