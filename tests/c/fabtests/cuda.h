/*
 * What libfabric and fabtests use of CUDA's driver API, so that they are built where CUDA's own
 * headers are not.
 */
#ifndef CUDA_H
#define CUDA_H

#include <stddef.h>

typedef enum { CUDA_SUCCESS = 0 } CUresult;
enum {
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_CONTEXT = 201,
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef enum { CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124 } CUdevice_attribute;
typedef enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 } CUmemRangeHandleType;
enum { CU_MEMORYTYPE_DEVICE = 2 };
typedef enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
} CUpointer_attribute;

/* The symbol: its first version takes addresses of 32 bits. */
#define cuMemGetAddressRange cuMemGetAddressRange_v2

CUresult cuMemGetHandleForAddressRange(void *descriptor, CUdeviceptr address, size_t length,
				       CUmemRangeHandleType kind, unsigned long long flags);

#endif
