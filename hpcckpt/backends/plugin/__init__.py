"""The backend whose storage is a plugin, a shared library in C or C++; see FORMAT.md."""
