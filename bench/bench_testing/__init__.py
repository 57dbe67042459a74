"""What several of the benches' tests share, and the golden files of the gym."""
