"""The files of steps: records and preimages, their containers, barriers and footprints."""
