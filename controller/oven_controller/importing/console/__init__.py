"""Import the text that a training program printed: lines with a counter of steps and `name: value` pairs."""
