"""Topics whose bodies have a schema: their messages as rows of a table of their own. See `docs/typed-topics.md`."""
