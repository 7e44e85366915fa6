/*
 * What CUDA's headers ask of the compiler, which comes with nvcc. A C compiler is asked nothing but
 * to align types.
 */
#ifndef HOST_DEFINES_H
#define HOST_DEFINES_H

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)

#endif
