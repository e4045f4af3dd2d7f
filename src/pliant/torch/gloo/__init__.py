"""The gloo process group of one generation: built, watched and broken from outside."""
