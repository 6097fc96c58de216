"""The stat cache that lets a scan skip what has not changed, and how one is begun from another."""
