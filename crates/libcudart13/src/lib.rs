//! `libcudart.so.13` of CUDA 13.5: the functions of the crate `libcudart`, under the names and the
//! symbol version that programs of CUDA 13 ask for.
#![allow(non_snake_case, reason = "names of cuda_runtime_api.h")]

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
