"""Commands of ``anabranch``, one module each; loaded only when used."""
