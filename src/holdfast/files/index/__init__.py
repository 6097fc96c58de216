"""The stat cache that lets a scan skip unchanged files, and ways to derive one from another."""
