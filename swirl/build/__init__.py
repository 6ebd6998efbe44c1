"""From C++ text to functions in this process: the compiler, its flags, libraries and the cache on disk."""
