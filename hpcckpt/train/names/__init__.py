"""Names that a configuration may use."""
