"""Right implementations that compute otherwise: other sums, products and formulas."""
