""" The few calls of cuda-python that rdma-core's dma-buf tests make, on a software GPU: memory is a
buffer of /dev/dri, exported as a dma-buf and mapped by this process. So those tests run unmodified
where there is no CUDA.
"""

# What the tests ask it by: it calls as cuda-python 12 does.
__version__ = "12.9.0"
