"""
The few calls of cuda-python that rdma-core's dma-buf tests make, on a software GPU: memory is a buffer of /dev/dri, exported
as a dma-buf and mapped by this process. So those tests run unmodified where there is no CUDA.
"""
