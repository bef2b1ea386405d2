"""Matrices in CSR format with the attributes of SciPy's."""

import numpy as np


class Matrix:
    """A matrix in CSR format, as one of SciPy's is taken."""

    def __init__(self, data, indices, indptr, shape):
        self.data, self.indices, self.indptr, self.shape = data, indices, indptr, shape

    def tocsr(self):
        return self

    def toarray(self):
        raise AssertionError("nothing may make it dense")


def csr(dense, dtype=np.float32):
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    data, indices = dense[dense != 0].astype(dtype), np.nonzero(dense)[1]
    return Matrix(data, indices.astype(np.int32), indptr.astype(np.int32), dense.shape)
