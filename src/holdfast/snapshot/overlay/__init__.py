"""The provider by overlays: layers, and the process that holds their mounts where root is not at hand."""
