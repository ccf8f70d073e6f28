"""Power loss: record what a save does to the file system, and look at what a crash may leave of it."""
