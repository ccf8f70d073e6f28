"""The kill harness that is alike for all libraries: what is saved, by whom, and what came back."""
