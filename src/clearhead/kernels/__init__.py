"""Everything fast. Private: the public way in is `clearhead.attention`."""
