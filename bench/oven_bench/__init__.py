"""The gym and the benches: they measure the product and are imported by none of its packages."""
