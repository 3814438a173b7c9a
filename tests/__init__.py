"""A package of its own name first: YDB's SDK installs one that is called `tests`, too, and would be found before a
directory without this file."""
