module hypercube

go 1.19
