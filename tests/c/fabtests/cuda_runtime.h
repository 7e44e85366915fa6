/*
 * What libfabric and fabtests use of CUDA's runtime.
 */
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H

#include <stddef.h>

typedef enum cudaError {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorInitializationError = 3,
	cudaErrorNoDevice = 100,
	cudaErrorAlreadyMapped = 208,
	cudaErrorUnknown = 999,
} cudaError_t;

enum cudaMemcpyKind {
	cudaMemcpyHostToDevice = 1,
	cudaMemcpyDeviceToHost = 2,
	cudaMemcpyDefault = 4,
};
enum { cudaHostRegisterDefault = 0, cudaIpcMemLazyEnablePeerAccess = 1 };

typedef struct {
	char reserved[64];
} cudaIpcMemHandle_t;

cudaError_t cudaMemcpy(void *to, const void *from, size_t length, enum cudaMemcpyKind kind);

#endif
