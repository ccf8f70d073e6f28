"""Files of other formats as checkpoints: told by their content, read without running any code of theirs."""
