"""The tools that come with Descant, one a file."""
