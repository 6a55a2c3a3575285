"""What fits Onward into frameworks. Each part imports its own, and is imported by its own name."""
