"""The stores that Onward can stand on, one package each."""
