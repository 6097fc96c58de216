"""A step is taken back, or brought forward: record by record, durably, whatever cuts it short."""
