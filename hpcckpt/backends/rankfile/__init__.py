"""One safetensors file per rank; see FORMAT.md beside this file."""
