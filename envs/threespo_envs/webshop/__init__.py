"""WebShop (Yao et al. 2022, arXiv:2207.01206): find a product by an instruction, choose its options and buy it, on a pure-Python shop."""
