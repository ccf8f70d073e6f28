"""One standard HDF5 file per checkpoint; see FORMAT.md beside this file."""
