"""The families of faults, by what they go wrong in: a class each, made by `@fault`. `catalogue` finds them."""
