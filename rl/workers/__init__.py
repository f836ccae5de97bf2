"""Policy ranks: the model, its optimizer, and the only ``optimizer.step``."""
