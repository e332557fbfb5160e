"""Questions about places: what trained role adapters answer, learn from and are measured on."""
