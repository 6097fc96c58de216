"""The overlay provider: layers, and the process that holds their mounts where root is not available."""
