/*
 * The functions of the CUDA runtime without the language's, which take nvcc.
 */
#include <cuda_runtime_api.h>
