"""Environment packages: loaded, checked, vendored and scaffolded, without importing Gym or the package's code."""
