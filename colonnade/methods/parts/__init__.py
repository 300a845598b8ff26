"""Parts of methods: what several share, and what would hide a method's algorithm."""
