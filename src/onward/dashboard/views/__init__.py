"""One module per group of pages: view functions that read, and actions that change."""
