"""Arms of a training experiment against each other: seeds × tasks × samples of 0 and 1, the same for all arms."""
