"""The catalog's database on PostgreSQL."""
