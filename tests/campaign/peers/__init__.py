"""The kill harness that is the same for all libraries: what is saved, by whom, and what came back."""
