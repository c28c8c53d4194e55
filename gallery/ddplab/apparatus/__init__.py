"""What the scripts of the gallery share: figures, several machines on one host, slow models, programs run by name."""
