//! The codes that the runtime's functions answer (`cudaError` of `driver_types.h`), by their names
//! and in words.

use std::ffi::CStr;

/// A code, its name, and what it says.
pub type Row = (u32, &'static CStr, &'static CStr);

/// What is known of a code.
pub fn find(code: u32) -> Option<&'static Row> {
    CODES.iter().find(|(known, ..)| *known == code)
}

/// Whether CUDA 12 has no such code.
pub fn is_new_in_13(code: u32) -> bool {
    matches!(code, 10 | 227 | 917..=919)
}

/// All of them, by number.
const CODES: &[Row] = &[
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (4, c"cudaErrorCudartUnloading", c"driver shutting down"),
    (5, c"cudaErrorProfilerDisabled", c"profiler disabled"),
    (6, c"cudaErrorProfilerNotInitialized", c"profiler not initialized"),
    (7, c"cudaErrorProfilerAlreadyStarted", c"profiler already started"),
    (8, c"cudaErrorProfilerAlreadyStopped", c"profiler already stopped"),
    (9, c"cudaErrorInvalidConfiguration", c"invalid configuration"),
    (10, c"cudaErrorVersionTranslation", c"the driver's answer is too new for the runtime"),
    (12, c"cudaErrorInvalidPitchValue", c"invalid pitch value"),
    (13, c"cudaErrorInvalidSymbol", c"invalid symbol"),
    (16, c"cudaErrorInvalidHostPointer", c"invalid host pointer"),
    (17, c"cudaErrorInvalidDevicePointer", c"invalid device pointer"),
    (18, c"cudaErrorInvalidTexture", c"invalid texture"),
    (19, c"cudaErrorInvalidTextureBinding", c"invalid texture binding"),
    (20, c"cudaErrorInvalidChannelDescriptor", c"invalid channel descriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"invalid memcpy direction"),
    (22, c"cudaErrorAddressOfConstant", c"address of constant"),
    (23, c"cudaErrorTextureFetchFailed", c"texture fetch failed"),
    (24, c"cudaErrorTextureNotBound", c"texture not bound"),
    (25, c"cudaErrorSynchronizationError", c"synchronization error"),
    (26, c"cudaErrorInvalidFilterSetting", c"invalid filter setting"),
    (27, c"cudaErrorInvalidNormSetting", c"invalid normalization setting"),
    (28, c"cudaErrorMixedDeviceExecution", c"mixed device execution"),
    (31, c"cudaErrorNotYetImplemented", c"not yet implemented"),
    (32, c"cudaErrorMemoryValueTooLarge", c"memory value too large"),
    (34, c"cudaErrorStubLibrary", c"the library is a stub"),
    (35, c"cudaErrorInsufficientDriver", c"insufficient driver"),
    (36, c"cudaErrorCallRequiresNewerDriver", c"call requires newer driver"),
    (37, c"cudaErrorInvalidSurface", c"invalid surface"),
    (43, c"cudaErrorDuplicateVariableName", c"duplicate variable name"),
    (44, c"cudaErrorDuplicateTextureName", c"duplicate texture name"),
    (45, c"cudaErrorDuplicateSurfaceName", c"duplicate surface name"),
    (46, c"cudaErrorDevicesUnavailable", c"device busy or unavailable"),
    (49, c"cudaErrorIncompatibleDriverContext", c"incompatible driver context"),
    (52, c"cudaErrorMissingConfiguration", c"missing configuration"),
    (53, c"cudaErrorPriorLaunchFailure", c"prior launch failure"),
    (65, c"cudaErrorLaunchMaxDepthExceeded", c"launch maximum depth exceeded"),
    (66, c"cudaErrorLaunchFileScopedTex", c"launch file scoped texture"),
    (67, c"cudaErrorLaunchFileScopedSurf", c"launch file scoped surface"),
    (68, c"cudaErrorSyncDepthExceeded", c"synchronization depth exceeded"),
    (69, c"cudaErrorLaunchPendingCountExceeded", c"launch pending count exceeded"),
    (98, c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (102, c"cudaErrorDeviceNotLicensed", c"device not licensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished", c"software validity not established"),
    (127, c"cudaErrorStartupFailure", c"startup failure"),
    (200, c"cudaErrorInvalidKernelImage", c"device kernel image is invalid"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (205, c"cudaErrorMapBufferObjectFailed", c"mapping of buffer object failed"),
    (206, c"cudaErrorUnmapBufferObjectFailed", c"unmapping of buffer object failed"),
    (207, c"cudaErrorArrayIsMapped", c"the array is mapped"),
    (208, c"cudaErrorAlreadyMapped", c"resource already mapped"),
    (
        209,
        c"cudaErrorNoKernelImageForDevice",
        c"no kernel image is available for execution on the device",
    ),
    (210, c"cudaErrorAlreadyAcquired", c"already acquired"),
    (211, c"cudaErrorNotMapped", c"resource not mapped"),
    (212, c"cudaErrorNotMappedAsArray", c"not mapped as array"),
    (213, c"cudaErrorNotMappedAsPointer", c"not mapped as pointer"),
    (214, c"cudaErrorECCUncorrectable", c"ECC uncorrectable"),
    (215, c"cudaErrorUnsupportedLimit", c"limit is not supported on this device"),
    (216, c"cudaErrorDeviceAlreadyInUse", c"exclusive context is already in use"),
    (
        217,
        c"cudaErrorPeerAccessUnsupported",
        c"peer access is not supported between these two devices",
    ),
    (218, c"cudaErrorInvalidPtx", c"a PTX JIT compilation failed"),
    (219, c"cudaErrorInvalidGraphicsContext", c"invalid graphics context"),
    (220, c"cudaErrorNvlinkUncorrectable", c"NVLink uncorrectable"),
    (221, c"cudaErrorJitCompilerNotFound", c"JIT compiler not found"),
    (222, c"cudaErrorUnsupportedPtxVersion", c"unsupported PTX version"),
    (223, c"cudaErrorJitCompilationDisabled", c"JIT compilation disabled"),
    (224, c"cudaErrorUnsupportedExecAffinity", c"unsupported execution affinity"),
    (225, c"cudaErrorUnsupportedDevSideSync", c"unsupported synchronization on the device"),
    (226, c"cudaErrorContained", c"an error was contained"),
    (227, c"cudaErrorInsufficientLoaderVersion", c"insufficient version of the loader"),
    (300, c"cudaErrorInvalidSource", c"device kernel image is invalid"),
    (301, c"cudaErrorFileNotFound", c"file not found"),
    (302, c"cudaErrorSharedObjectSymbolNotFound", c"shared object symbol not found"),
    (303, c"cudaErrorSharedObjectInitFailed", c"shared object initialization failed"),
    (304, c"cudaErrorOperatingSystem", c"OS call failed or operation not supported"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (401, c"cudaErrorIllegalState", c"the operation cannot be performed in this state"),
    (402, c"cudaErrorLossyQuery", c"lossy query"),
    (500, c"cudaErrorSymbolNotFound", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (700, c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
    (701, c"cudaErrorLaunchOutOfResources", c"too many resources requested for launch"),
    (702, c"cudaErrorLaunchTimeout", c"launch timeout"),
    (703, c"cudaErrorLaunchIncompatibleTexturing", c"launch incompatible texturing"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled", c"peer access is already enabled"),
    (705, c"cudaErrorPeerAccessNotEnabled", c"peer access has not been enabled"),
    (708, c"cudaErrorSetOnActiveProcess", c"cannot set while device is active in this process"),
    (709, c"cudaErrorContextIsDestroyed", c"context is destroyed"),
    (710, c"cudaErrorAssert", c"an assertion failed"),
    (711, c"cudaErrorTooManyPeers", c"too many peers"),
    (
        712,
        c"cudaErrorHostMemoryAlreadyRegistered",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"cudaErrorHostMemoryNotRegistered",
        c"pointer does not correspond to a registered memory region",
    ),
    (714, c"cudaErrorHardwareStackError", c"hardware stack error"),
    (715, c"cudaErrorIllegalInstruction", c"illegal instruction"),
    (716, c"cudaErrorMisalignedAddress", c"misaligned address"),
    (717, c"cudaErrorInvalidAddressSpace", c"invalid address space"),
    (718, c"cudaErrorInvalidPc", c"invalid program counter"),
    (719, c"cudaErrorLaunchFailure", c"unspecified launch failure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge", c"cooperative launch too large"),
    (721, c"cudaErrorTensorMemoryLeak", c"tensor memory leak"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (802, c"cudaErrorSystemNotReady", c"system not yet initialized"),
    (803, c"cudaErrorSystemDriverMismatch", c"system driver mismatch"),
    (804, c"cudaErrorCompatNotSupportedOnDevice", c"compatibility not supported on device"),
    (805, c"cudaErrorMpsConnectionFailed", c"MPS connection failed"),
    (806, c"cudaErrorMpsRpcFailure", c"MPS RPC failure"),
    (807, c"cudaErrorMpsServerNotReady", c"MPS server not ready"),
    (808, c"cudaErrorMpsMaxClientsReached", c"MPS maximum clients reached"),
    (809, c"cudaErrorMpsMaxConnectionsReached", c"MPS maximum connections reached"),
    (810, c"cudaErrorMpsClientTerminated", c"MPS client terminated"),
    (811, c"cudaErrorCdpNotSupported", c"CDP not supported"),
    (812, c"cudaErrorCdpVersionMismatch", c"CDP version mismatch"),
    (
        900,
        c"cudaErrorStreamCaptureUnsupported",
        c"operation not permitted when stream is capturing",
    ),
    (901, c"cudaErrorStreamCaptureInvalidated", c"stream capture invalidated"),
    (902, c"cudaErrorStreamCaptureMerge", c"stream capture merge"),
    (903, c"cudaErrorStreamCaptureUnmatched", c"stream capture unmatched"),
    (904, c"cudaErrorStreamCaptureUnjoined", c"stream capture unjoined"),
    (905, c"cudaErrorStreamCaptureIsolation", c"stream capture isolation"),
    (906, c"cudaErrorStreamCaptureImplicit", c"stream capture implicit"),
    (907, c"cudaErrorCapturedEvent", c"captured event"),
    (908, c"cudaErrorStreamCaptureWrongThread", c"stream capture wrong thread"),
    (909, c"cudaErrorTimeout", c"wait operation timed out"),
    (910, c"cudaErrorGraphExecUpdateFailure", c"graph execution update failure"),
    (911, c"cudaErrorExternalDevice", c"external device"),
    (912, c"cudaErrorInvalidClusterSize", c"invalid cluster size"),
    (913, c"cudaErrorFunctionNotLoaded", c"function not loaded"),
    (914, c"cudaErrorInvalidResourceType", c"invalid resource type"),
    (915, c"cudaErrorInvalidResourceConfiguration", c"invalid resource configuration"),
    (917, c"cudaErrorStreamDetached", c"the green context of the stream is destroyed"),
    (918, c"cudaErrorGraphRecaptureFailure", c"recapture of a graph failed"),
    (919, c"cudaErrorFabricNotReady", c"the fabric is not ready"),
    (999, c"cudaErrorUnknown", c"unknown error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_there_once() {
        assert!(CODES.is_sorted_by(|one, next| one.0 < next.0));
        assert_eq!(find(101).map(|(_, name, _)| *name), Some(c"cudaErrorInvalidDevice"));
        assert!(CODES.iter().filter(|(code, ..)| is_new_in_13(*code)).count() == 5);
        assert_eq!(find(202), None);
    }
}
