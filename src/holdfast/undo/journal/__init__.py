"""What steps leave on the disk: records and preimages, the files they lie in, barriers and footprints."""
