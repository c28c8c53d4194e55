"""How every page looks: one style sheet, mathematics, what the theme leaves out for keyboard and ear."""
