"""What is measured and set on any torch optimizer, with a trainer around it or in one's own loop."""
