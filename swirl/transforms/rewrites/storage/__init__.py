"""Arrays and locals: what lives where."""
