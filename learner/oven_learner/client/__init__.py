"""The learner's client: observe, poll, carry out decisions and answer them."""
