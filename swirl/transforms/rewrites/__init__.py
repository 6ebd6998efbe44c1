"""What commands and passes share."""
