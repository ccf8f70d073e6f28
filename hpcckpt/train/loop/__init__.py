"""Training loops, and how gradients are averaged over ranks."""
