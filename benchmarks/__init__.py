"""Each number that the README quotes on speed comes from a module here, peer included."""
