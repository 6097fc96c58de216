"""Where everything is kept: objects, packs, blobs, manifests, the catalog, collection and verification."""
